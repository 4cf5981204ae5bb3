"""What people and gpushare partition request of this node: cordoned GPUs, and slices."""
