"""Test kit: an embedded kubelet and a stand-in for `libnvidia-ml`, for our tests and yours."""
