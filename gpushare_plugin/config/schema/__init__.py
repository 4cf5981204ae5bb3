"""The schema of the config: frozen models."""
