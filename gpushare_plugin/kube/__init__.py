"""The API server: the only package that speaks to it."""
