"""Tests of the command as a process."""
