"""Generators of the committed code, documentation tables and golden files; `make generate` runs them."""
