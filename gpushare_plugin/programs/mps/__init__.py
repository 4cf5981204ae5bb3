"""The process that runs NVIDIA's MPS control daemon."""
