"""The schema of the config, as frozen models."""
