"""What measures see of the daemon in place of a kubelet."""
