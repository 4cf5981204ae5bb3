"""Tests of `real_gpus` on a machine without a GPU: stand-ins for NVML, CUDA and MPS under the real programs."""
