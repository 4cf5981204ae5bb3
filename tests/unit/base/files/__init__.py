"""Tests of files, locks and sockets in the file system."""
