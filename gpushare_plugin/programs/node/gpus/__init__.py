"""The GPUs of a node: which are present, their health, and the looks at them."""
