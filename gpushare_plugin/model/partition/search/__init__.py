"""The search for slices: the room of nodes and GPUs, the best node and GPUs, and the refusal if no GPU has room."""
