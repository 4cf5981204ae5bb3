"""The host: GPUs as NVML, or a file, describes them."""
