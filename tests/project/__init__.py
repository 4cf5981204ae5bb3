"""Tests of the project itself: documents, structure, benchmarks."""
