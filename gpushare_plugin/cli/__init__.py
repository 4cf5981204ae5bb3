"""The command line: a lazy group, a module for every command, and the common parts of commands."""
