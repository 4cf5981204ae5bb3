"""The ways of sharing a GPU: one module for each way."""
