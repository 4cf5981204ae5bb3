"""GPUs, units and resources of a node, the choice of GPUs for a request, and who uses what; no input or output."""
