"""The sources of the config: files, named configs and node labels, with a watch for changes."""
