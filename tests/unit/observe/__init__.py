"""Tests of metrics and probes."""
