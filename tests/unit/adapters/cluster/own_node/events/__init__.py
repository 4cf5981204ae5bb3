"""Tests of the Events of a node."""
