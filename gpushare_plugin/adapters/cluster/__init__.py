"""The API server; imports neither the kubelet nor the host."""
