"""CUDA MPS: `gpushare run` writes the desired settings to a file, and `gpushare mps` runs the control daemon."""
