"""Tests of a whole node in this process, with an embedded kubelet."""
