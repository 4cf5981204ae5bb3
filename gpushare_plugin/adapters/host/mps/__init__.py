"""CUDA MPS: one control daemon for the GPUs shared that way; `gpushare mps` keeps it, files tell what is wanted."""
