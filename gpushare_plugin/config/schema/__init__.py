"""What there is to set, as frozen models."""
