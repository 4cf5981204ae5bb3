"""Metrics and probes."""
