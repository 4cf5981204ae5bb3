"""The isolations of containers that share a GPU: one module for each isolation."""
