"""The ways to share a GPU, one module each; none of them does input or output."""
