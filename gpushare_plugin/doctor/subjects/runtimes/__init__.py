"""The container runtimes of a node: which one the kubelet uses, and how it gives GPUs to containers."""
