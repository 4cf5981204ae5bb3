"""What the liveness probe of the pod looks at: a file that is touched while the event loop runs.

A probe that started Python each time would cost more than the process itself; `find` can tell how old a file is.
"""

import asyncio
from pathlib import Path

import structlog

_log = structlog.get_logger()


async def show_alive(file: Path, every: float) -> None:
    """Touch `file` every `every` seconds until cancelled, then remove it; a failure is logged once."""
    failed = False
    try:
        while True:
            try:
                file.touch()
                failed = False
            except OSError as error:
                if not failed:
                    _log.error("mps_liveness_not_shown", path=str(file), reason=error.strerror or str(error))
                failed = True
            await asyncio.sleep(every)
    finally:
        file.unlink(missing_ok=True)
