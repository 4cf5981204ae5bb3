"""`gpushare web` as a person runs it, and a client that is no browser."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.waiting import PATIENCE


@asynccontextmanager
async def pages(kubeconfig: Path) -> AsyncIterator[str]:
    """Run `gpushare web`, and yield the address that it prints."""
    command = [sys.executable, "-m", "gpushare_plugin", "web", "--no-browser", "--kubeconfig", str(kubeconfig)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = (await process.stdout.readline()).decode()
        yield next(word for word in line.split() if word.startswith("http://"))
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
