"""Tests of `gpushare_plugin.mps.service`; the process as a whole is tested in `tests/process/test_mps.py`."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.gpus.exchange import AlreadyRunningError, ExchangeError
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.mps.service import serve
from tests.chart.reading import container
from tests.logs import logged
from tests.unit.mps.supervised import PACE, Modes
from tests.waiting import until

WARNING = "mps_shared_memory_separate"


@contextlib.asynccontextmanager
async def serving(root: MpsRoot, shm: Path | None = None) -> AsyncIterator[list[Any]]:
    """Serve until the end of the block; yield the events of the log."""
    with logged() as told:
        task = asyncio.create_task(serve(root, Modes(), shm=shm, pace=PACE))
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


async def test_a_pipe_in_the_locks_place_ends_the_process_with_a_sentence(root: MpsRoot) -> None:
    """The process does not wait for another one, and says which file is in the way."""
    os.mkfifo(root.lock)
    with pytest.raises(ExchangeError, match=rf"cannot be used: .*not a regular file.*{root.lock}"):
        await serve(root, Modes())


async def test_a_second_process_touches_nothing(root: MpsRoot) -> None:
    """A process that is refused has made no directory and no status."""
    with lock(root.lock), pytest.raises(AlreadyRunningError, match=f"uses {root.path}"):
        await serve(root, Modes())
    assert not root.shm.exists()
    assert not root.status.exists()


async def test_a_working_process_shows_that_it_is_alive(root: MpsRoot) -> None:
    """The file of the liveness probe is touched again and again; a stuck process lets it grow old."""
    async with serving(root):
        await until(root.alive.exists)
        os.utime(root.alive, (0, 0))
        await until(lambda: time.time() - root.alive.stat().st_mtime < 60)


async def test_probes_of_the_chart_look_at_the_work_of_the_process(root: MpsRoot) -> None:
    """The commands of the probes succeed while it works and serves what is desired, and fail when it is stuck."""

    async def succeeds(probe: str) -> bool:
        (*command,) = container({"mps": {"enabled": True}}, "mps")[probe]["exec"]["command"]
        asked = await asyncio.create_subprocess_exec(*command, env={**os.environ, "MPS_ROOT": str(root.path)})
        return await asked.wait() == 0

    async with serving(root):
        await until(lambda: root.alive.exists() and root.ready.exists())
        assert await succeeds("livenessProbe")
        assert await succeeds("readinessProbe")
    assert not await succeeds("livenessProbe")
    assert not await succeeds("readinessProbe")
    root.alive.touch()
    os.utime(root.alive, (time.time() - 400, time.time() - 400))
    assert not await succeeds("livenessProbe")


async def test_a_file_that_cannot_be_touched_is_reported_once(root: MpsRoot) -> None:
    """Something else in its place ends nothing; the log says what is wrong, once."""
    root.alive.symlink_to(root.path / "missing/file")
    async with serving(root) as told:
        await until(lambda: [each for each in told if each["event"] == "liveness_not_shown"])
        await until(root.ready.exists)
    assert [each["reason"] for each in told if each["event"] == "liveness_not_shown"] == ["No such file or directory"]


async def test_a_file_that_cannot_be_removed_ends_nothing_else(root: MpsRoot) -> None:
    """A directory in its place stays, and the process ends as it would without it."""
    root.alive.mkdir()
    async with serving(root):
        await until(root.ready.exists)
    assert root.alive.is_dir()


async def test_files_of_an_earlier_run_count_for_no_probe(root: MpsRoot) -> None:
    """After a crash the pod is not ready until the new process says so, and never once it has ended."""
    root.ready.touch()
    root.wanted.write_text("not JSON")
    async with serving(root):
        await until(root.status.exists)
        assert not root.ready.exists()
        root.wanted.unlink()
        await until(root.ready.exists)
    assert not root.ready.exists()
    assert not root.alive.exists()
