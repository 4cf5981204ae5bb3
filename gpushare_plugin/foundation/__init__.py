"""What knows nothing of GPUs: errors, locks, signals, values that are published."""
