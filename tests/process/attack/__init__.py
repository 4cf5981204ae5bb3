"""Attacks on a running daemon: the node that is attacked, and the table of attacks."""
