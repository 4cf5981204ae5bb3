"""Tests of `gpushare_plugin.programs.mps.service`; the process as a whole is tested in `tests/process/test_mps.py`."""

import asyncio
import contextlib
import fcntl
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from gpushare_plugin.adapters.host.mps.exchange import MpsRoot
from gpushare_plugin.foundation.lock import is_locked, lock
from gpushare_plugin.programs.mps.service import AlreadyKeptError, serve
from tests.unit.adapters.host.mps.keeping import Modes, until

WARNING = "MPS servers share memory with containers only where both see the same directory"


@contextlib.asynccontextmanager
async def serving(root: MpsRoot, shm: Path | None = None) -> AsyncIterator[list[Any]]:
    """Serve until the end of the block; yield the events of the log."""
    before = structlog.get_config()["wrapper_class"]
    with contextlib.ExitStack() as stack:
        stack.callback(structlog.configure, wrapper_class=before)
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
        told = stack.enter_context(capture_logs())
        task = asyncio.create_task(serve(root, Modes(), shm=shm))
        try:
            yield told
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.parametrize("same", [True, False])
async def test_memory_that_containers_do_not_see_is_told(root: MpsRoot, *, same: bool) -> None:
    """Where /dev/shm is not the directory that pods get, it says so, and what to mount where."""
    async with serving(root, shm=root.shm if same else root.log) as told:
        await until(root.status.exists)
        found = [each for each in told if each["event"] == WARNING]
        assert len(found) == (0 if same else 1)
        assert same or found[0]["remedy"].startswith(f"mount {root.shm} of the host at {root.log}")


async def test_a_look_at_the_lock_refuses_nobody(root: MpsRoot) -> None:
    """A plugin that looks at the lock in the very moment has it shared; the lock is tried for again."""
    root.lock.touch()
    with root.lock.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        async with serving(root):
            await asyncio.sleep(0)
            assert not root.status.exists()
            fcntl.flock(looking, fcntl.LOCK_UN)
            await until(root.status.exists)
            assert is_locked(root.lock)


async def test_a_second_one_touches_nothing(root: MpsRoot) -> None:
    """Whoever is refused has made no directory and no status."""
    with lock(root.lock), pytest.raises(AlreadyKeptError, match=f"looks after {root.path}"):
        await serve(root, Modes())
    assert not root.shm.exists()
    assert not root.status.exists()
