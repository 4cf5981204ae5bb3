"""From a file to a config, or to everything that is wrong with it."""
