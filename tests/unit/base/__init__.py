"""Tests of what knows nothing of GPUs."""
