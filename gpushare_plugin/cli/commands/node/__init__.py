"""Commands that run on a node: the daemons of the node, and the list of the GPUs."""
