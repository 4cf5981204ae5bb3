"""From a file to a config, or to all mistakes in the file."""
