"""The devices allocated to containers by the kubelet."""
