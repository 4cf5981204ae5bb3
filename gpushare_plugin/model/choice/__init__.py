"""Which GPUs a request gets, from counts alone; pure."""
