"""The ways of sharing a GPU: one module a way."""
