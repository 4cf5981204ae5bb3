"""The host: GPUs described by NVML or by a file, compute modes, processes, and files that two daemons share."""
