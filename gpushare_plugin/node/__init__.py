"""The daemon of a node."""
