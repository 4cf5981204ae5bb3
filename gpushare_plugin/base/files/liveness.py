"""The file for the liveness probe of the pod, touched while the event loop runs.

A probe that starts Python would cost more than the process itself. The probe uses `find`, which can tell the age of a
file.
"""

import asyncio
import contextlib
from pathlib import Path

import structlog

_log = structlog.get_logger()


async def show_alive(file: Path, every: float) -> None:
    """Touch `file` every `every` seconds until cancelled, then remove it; the first of several failures is logged."""
    before: str | None = None
    try:
        while True:
            reason = _touch(file)
            if reason is not None and before is None:
                _log.error("liveness_not_shown", path=str(file), reason=reason)
            before = reason
            await asyncio.sleep(every)
    finally:
        _remove(file)


def _touch(file: Path) -> str | None:
    """Touch a file; return the reason of a failure, None after a success."""
    try:
        file.touch()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _remove(file: Path) -> None:
    # A file that cannot be removed grows old, and the probe sees the age; the error must not hide why the process ends.
    with contextlib.suppress(OSError):
        file.unlink()
