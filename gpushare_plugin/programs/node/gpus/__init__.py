"""The GPUs of a node: which there are, how they are, and who looks."""
