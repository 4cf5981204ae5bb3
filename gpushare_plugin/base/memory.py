"""Amounts of memory."""

MIB = 1024 * 1024
"""Bytes in a MiB."""
MIB_PER_GIB = 1024
"""MiB in a GiB."""
