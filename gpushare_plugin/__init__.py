"""gpushare: many pods on one GPU of a Kubernetes node."""

__version__ = "0.1.0"
