"""Shows on a machine with NVIDIA GPUs what gpushare does there, without Kubernetes: `make gpu`, docs/real-gpus.md.

The embedded kubelet allocates, real CUDA programs run with exactly the granted environment, mounts and cgroups, and a
report says for every statement of gpushare whether the statement holds on this machine.
"""
