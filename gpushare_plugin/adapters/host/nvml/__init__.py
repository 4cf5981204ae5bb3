"""NVML, the driver's library; the only importer of pynvml."""
