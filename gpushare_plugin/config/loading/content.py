"""The content of the config file, read no further than a config file can reach."""

from pathlib import Path

from gpushare_plugin.foundation.files.regular_file import read_regular

LARGEST_FILE = 1 << 20
"""Bytes; a ConfigMap cannot hold more either."""


def read_content(file: Path) -> bytes:
    """Return what `file` holds, of a larger file than may be one byte too many.

    Raises OSError, also for what is no regular file: reading a pipe would wait for a writer.
    """
    # The files of a ConfigMap mount are links.
    return read_regular(file, LARGEST_FILE + 1, follow_links=True)
