"""The policies that can be compared: `packing`, and others from publications and schedulers."""
