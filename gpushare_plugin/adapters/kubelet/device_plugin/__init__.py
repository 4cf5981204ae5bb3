"""The device-plugin API: one resource served, registered and kept registered."""
