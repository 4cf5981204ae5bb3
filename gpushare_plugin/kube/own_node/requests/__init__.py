"""Requests of people and of `gpushare partition` to this node: cordoned GPUs, and slices."""
