"""The command line: a lazy group, one module a command, and what commands have in common."""
