"""CUDA MPS: one control daemon for the GPUs shared that way; `gpushare mps` runs it, files say what is desired."""
