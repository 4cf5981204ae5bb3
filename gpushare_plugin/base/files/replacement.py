"""Files that others read while gpushare writes: replaced whole, in one step."""

import os
from pathlib import Path


def replace_file(file: Path, content: str) -> None:
    """Replace `file`, readable by everybody, so that no reader sees half of `content`.

    Raises OSError with a file name, also where the kernel gives none, as for a full disk.
    """
    new = _new(file)
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(content)
        new.rename(file)
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def remove_file(file: Path) -> None:
    """Remove `file`, and what a process left that ended while replacing the file; raises OSError.

    A missing file is no error, also in a directory that is read-only, or is no directory any more.
    """
    for each in (_new(file), file):
        if os.path.lexists(each):
            each.unlink(missing_ok=True)


def _new(file: Path) -> Path:
    return file.with_name(f".{file.name}.new")
