"""Finds, starts, asks, limits and ends the MPS control daemon, `nvidia-cuda-mps-control`."""
