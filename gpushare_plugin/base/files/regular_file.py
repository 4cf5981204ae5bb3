"""Safe opening and reading of files made by other programs: only regular files, no waiting, no endless read."""

import errno
import os
import stat
from pathlib import Path


def open_regular(path: Path, flags: int, mode: int = 0o600, *, follow_links: bool = False) -> int:
    """Open the regular file at `path` with `flags` and `mode` of open(2), and return the descriptor.

    Raises OSError, also for anything but a regular file: a pipe would make the process wait, and a symbolic link,
    refused without `follow_links`, could lead to a file chosen by another user. Programs run by this process do not
    inherit the descriptor (PEP 446).
    """
    if not follow_links:
        flags |= os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        raise _clearer(error, path, follow_links=follow_links) from None
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
    raise OSError(errno.EINVAL, f"not a regular file ({stat.filemode(kind)})", str(path))


def read_regular(path: Path, most: int, *, follow_links: bool = False) -> bytes:
    """Return the content of the file at `path`, at most its first `most` bytes; raise the errors of `open_regular`."""
    with os.fdopen(open_regular(path, os.O_RDONLY, follow_links=follow_links), "rb") as stream:
        return stream.read(most)


def _clearer(error: OSError, path: Path, *, follow_links: bool) -> OSError:
    """Return the error in fitting words where the words of the kernel do not fit."""
    if error.errno == errno.ELOOP and not follow_links:
        return OSError(errno.ELOOP, "is a symbolic link, a regular file expected", str(path))
    if error.errno == errno.ENXIO:  # a socket
        return OSError(errno.EINVAL, "not a regular file", str(path))
    error.filename = str(path)
    return error
