"""Files that others read while gpushare writes: replaced whole, in one step."""

import os
from pathlib import Path


def replace_file(file: Path, content: str) -> None:
    """Replace `file`, readable by everybody, so that no reader sees half of `content`; raises OSError."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(content)
    new.rename(file)
