"""Tests of the Events of a program."""
