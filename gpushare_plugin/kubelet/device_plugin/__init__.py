"""The device-plugin API: a resource served, registered and kept registered."""
