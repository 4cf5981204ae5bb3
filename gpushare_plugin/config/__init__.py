"""Settings: the file, the environment and the command line, checked and merged."""
