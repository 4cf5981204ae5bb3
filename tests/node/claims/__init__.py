"""Tests of GPUs given by claim: real daemons, an embedded kubelet, an API server and a small scheduler."""
