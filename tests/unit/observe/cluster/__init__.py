"""Tests of what people are shown of a whole cluster."""
