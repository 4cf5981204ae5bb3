"""Measures the running daemon from outside, each figure beside its floor; `make bench`, docs/performance.md."""
