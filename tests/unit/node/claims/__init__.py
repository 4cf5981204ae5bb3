"""Tests of the claims of a node."""
