"""Parts without knowledge of GPUs: errors, locks, signals, published values, tasks, the log."""
