"""The content of the config file, read no further than a config file can reach."""

from pathlib import Path

LARGEST_FILE = 1 << 20
"""Bytes; a ConfigMap cannot hold more either."""


def read_content(file: Path) -> bytes:
    """Return what `file` holds, of a larger file than may be one byte too many; raises OSError."""
    with file.open("rb") as stream:
        return stream.read(LARGEST_FILE + 1)
