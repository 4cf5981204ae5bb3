"""The commands: a command is `command` in the module of its name; `cli.main` names the folder."""
