"""The version of gpushare."""

__version__ = "0.1.0"
