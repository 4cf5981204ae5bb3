"""MIG instances: `gpushare run` writes orders to a file, and `gpushare mig` creates and destroys the instances."""
