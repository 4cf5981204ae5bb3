"""The choice of GPUs for a request, from numbers of units alone, without any input or output."""
