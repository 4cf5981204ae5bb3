"""Opening and reading files that others may have made: regular files only, never waited for, and not without end."""

import errno
import os
import stat
from pathlib import Path


def open_regular(path: Path, flags: int, mode: int = 0o600, *, follow_links: bool = False) -> int:
    """Open the regular file at `path` as open(2) does with these flags, and return the descriptor.

    Raises OSError, also for anything that is no regular file: a pipe would make us wait, a link without `follow_links`
    lead us to a file that another user chose. Programs that this process runs do not get the descriptor (PEP 446).
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
    """Return what the file at `path` holds, of a larger one its first `most` bytes; raises as `open_regular`."""
    with os.fdopen(open_regular(path, os.O_RDONLY, follow_links=follow_links), "rb") as stream:
        return stream.read(most)


def _clearer(error: OSError, path: Path, *, follow_links: bool) -> OSError:
    """Return the same error in words that fit, where the kernel's do not."""
    if error.errno == errno.ELOOP and not follow_links:
        return OSError(errno.ELOOP, "is a symbolic link, a regular file expected", str(path))
    if error.errno == errno.ENXIO:  # a socket
        return OSError(errno.EINVAL, "not a regular file", str(path))
    error.filename = str(path)
    return error
