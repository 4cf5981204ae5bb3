"""Where a slice can come from: what fits on one GPU, which node and GPUs are best, and what is missing where none."""
