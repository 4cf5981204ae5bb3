"""gpushare: many pods on one GPU of a Kubernetes node."""

from gpushare_plugin.base.version import __version__

__all__ = ["__version__"]
