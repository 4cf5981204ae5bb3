"""Tests of the outside worlds."""
