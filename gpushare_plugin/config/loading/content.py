"""The content of the config file, up to the largest size allowed."""

from pathlib import Path

from gpushare_plugin.base.files.regular_file import read_regular

LARGEST_FILE = 1 << 20
"""Bytes; also the limit of a ConfigMap."""


def read_content(file: Path) -> bytes:
    """Return the content of `file`, cut one byte after the largest size allowed.

    Raises OSError, also for anything but a regular file: a pipe would make the reader wait for a writer.
    """
    # The files of a ConfigMap mount are links.
    return read_regular(file, LARGEST_FILE + 1, follow_links=True)
