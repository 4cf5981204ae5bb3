"""From a file to settings, or to everything that is wrong with it."""
