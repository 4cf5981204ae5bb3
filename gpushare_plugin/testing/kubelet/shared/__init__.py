"""What the embedded kubelet and its managers have in common: pods, errors, calls, and the record of what happened."""
