"""`gpushare mps`: one process a node that keeps the control daemon, until it is told to end."""

import asyncio
from pathlib import Path

import structlog

from gpushare_plugin.adapters.host.compute_modes import ComputeModes
from gpushare_plugin.adapters.host.mps.exchange import ExchangeError, MpsRoot
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.lock import Lock, LockedError, lock
from gpushare_plugin.foundation.signals import until_told
from gpushare_plugin.programs.mps.control import Control
from gpushare_plugin.programs.mps.keeper import Keeper, Pace
from gpushare_plugin.programs.mps.log import follow
from gpushare_plugin.programs.mps.modes import ExclusiveModes

_log = structlog.get_logger()

LOCK_ATTEMPTS = 10
LOCK_PAUSE = 0.1
"""Seconds between attempts: whoever looks whether the lock is held has it for a moment."""


class AlreadyKeptError(GpushareError):
    """Another `gpushare mps` has the MPS root; the message names both and what to do."""


async def run(
    root: MpsRoot, modes: ComputeModes, *, shm: Path | None = None, pace: Pace | None = None, patience: float = 10.0
) -> None:
    """Do what `wanted.json` in `root` says, until SIGTERM or SIGINT; then end MPS and put compute modes back.

    `shm` is where this process sees the memory that servers share with their clients, None not to check. Raises
    AlreadyKeptError, and ExchangeError when the root cannot be used; then nothing was touched.
    """
    # Told twice, it still puts compute modes back.
    await until_told(serve(root, modes, shm=shm, pace=pace, patience=patience), once=True)


async def serve(
    root: MpsRoot, modes: ComputeModes, *, shm: Path | None = None, pace: Pace | None = None, patience: float = 10.0
) -> None:
    """Do what `run` does, until cancelled; what is wrong with the process itself leaves the daemon to the next one."""
    root.refuse_long_path()
    with await _lock(root):
        root.status.unlink(missing_ok=True)  # what an earlier run served is not served yet
        _make_directories(root)
        if shm is not None:
            _check_memory(root, shm)
        keeper = Keeper(root, Control(root.pipe, root.log, patience), ExclusiveModes(modes, root.modes), pace)
        try:
            async with asyncio.TaskGroup() as tasks:
                for name in ("control.log", "server.log"):
                    tasks.create_task(follow(root.log / name), name=name)
                await keeper.run()
        except asyncio.CancelledError:
            await keeper.stop()
            raise


async def _lock(root: MpsRoot) -> Lock:
    for attempt in range(1, LOCK_ATTEMPTS + 1):
        try:
            root.path.mkdir(parents=True, exist_ok=True)
            return lock(root.lock)
        except LockedError as error:
            if attempt == LOCK_ATTEMPTS:
                raise AlreadyKeptError(
                    f"another gpushare mps{error.holder} looks after {root.path}, and there can be only one; stop it "
                    "first"
                ) from None
        except OSError as error:
            raise ExchangeError(f"the MPS root {root.path} cannot be used: {error.strerror or error}") from error
        await asyncio.sleep(LOCK_PAUSE)
    raise AssertionError("the last attempt returns or raises")


def _make_directories(root: MpsRoot) -> None:
    """Make what the daemon needs; servers and clients of other users go through it, whatever our umask is."""
    try:
        for directory, mode in ((root.path, 0o755), (root.pipe, 0o755), (root.log, 0o755), (root.shm, 0o1777)):
            directory.mkdir(exist_ok=True)
            directory.chmod(mode)
    except OSError as error:
        raise ExchangeError(f"the MPS root {root.path} cannot be used: {error.strerror or error}") from error


def _check_memory(root: MpsRoot, shm: Path) -> None:
    if not (shm.exists() and shm.samefile(root.shm)):
        _log.warning(
            "MPS servers share memory with containers only where both see the same directory",
            here=str(shm),
            containers=str(root.shm),
            remedy=f"mount {root.shm} of the host at {shm} in the container of gpushare mps",
        )
