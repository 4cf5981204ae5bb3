"""Reports and tables about shared GPUs and the pods on them."""
