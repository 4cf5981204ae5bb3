"""The HTTP server for kube-scheduler: its paths, and the limits of requests."""
