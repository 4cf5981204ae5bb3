"""Sharing the GPUs of a node: plan, ways, isolations and transitions, without any input or output."""
