"""GPUs, the units they are cut into, and where a request goes; no input or output."""
