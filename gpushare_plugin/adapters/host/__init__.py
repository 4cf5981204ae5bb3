"""The host: GPUs described by NVML or by a file, and the files exchanged with `gpushare mps` and `gpushare mig`."""
