"""The program `gpushare mps`: runs NVIDIA's MPS control daemon on a node."""
