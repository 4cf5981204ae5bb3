"""The programs, one package each: the daemon of a node, and the process that runs MPS."""
