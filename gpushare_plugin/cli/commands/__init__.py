"""The commands, each `command` in the module of its name; `cli.main` says in which folder."""
