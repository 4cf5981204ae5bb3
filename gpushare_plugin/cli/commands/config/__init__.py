"""Commands for the config."""
