"""The GPUs of a node: presence, health, looks, slices, and the needs for MPS and MIG."""
