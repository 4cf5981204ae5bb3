"""GPU usage: holders and users of GPUs, foreign processes, and containers over their limit."""
