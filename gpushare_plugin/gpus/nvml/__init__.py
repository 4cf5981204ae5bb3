"""NVML, the management library of NVIDIA's driver; only this package imports pynvml."""
