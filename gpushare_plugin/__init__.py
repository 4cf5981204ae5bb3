"""Many pods on one GPU: the node daemon of gpushare."""

__version__ = "0.1.0"
