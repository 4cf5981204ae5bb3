"""GPUs, their units, and the choice of GPUs for a request; no input or output."""
