"""Tests of the parts of the test kit for DRA, with a driver that is in these tests only."""
