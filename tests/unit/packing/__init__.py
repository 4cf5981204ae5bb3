"""Tests of the policy `packing`."""
