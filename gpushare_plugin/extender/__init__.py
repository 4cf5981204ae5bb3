"""The scheduler extender: places pods by GPU, where kube-scheduler sees only the sums of nodes."""
