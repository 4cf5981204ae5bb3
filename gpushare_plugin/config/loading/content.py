"""The content of the config file, read no further than a config file can reach."""

import errno
import stat
from pathlib import Path

LARGEST_FILE = 1 << 20
"""Bytes; a ConfigMap cannot hold more either."""


def read_content(file: Path) -> bytes:
    """Return what `file` holds, of a larger file than may be one byte too many.

    Raises OSError, also for what is no regular file: reading a pipe would wait for a writer.
    """
    mode = file.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory", str(file))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"not a regular file ({stat.filemode(mode)})", str(file))
    with file.open("rb") as stream:
        return stream.read(LARGEST_FILE + 1)
