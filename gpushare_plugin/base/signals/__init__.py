"""The effects of signals on a program, and the orderly end of a program by a signal."""
