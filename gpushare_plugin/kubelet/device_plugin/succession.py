"""One daemon follows another on a node, and at every moment one of the two answers the kubelet.

A daemon that stands by holds the lock on SUCCESSOR_FILE until all its resources are registered. A daemon that ends
while that lock is held leaves the directory, and goes on answering the kubelet until the lock is free. The kubelet
takes the newest registration of a resource for the valid one (`PluginConnected` in pkg/kubelet/cm/devicemanager).

Until 1.36, a kubelet disconnects the new daemon when the stream of the old daemon ends (kubernetes#121994); the session
of the new daemon then registers once more, within milliseconds.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.lock import Lock, LockedError, is_locked, lock
from gpushare_plugin.kubelet.device_plugin.directory import LOCK_FILE, AlreadyServedError, PluginDirectory

_log = structlog.get_logger()

SUCCESSOR_FILE = "gpushare.successor"
"""Name of the file, in the plugin directory, that is locked by a daemon that stands by. The file is never removed."""
LONGEST_HANDOVER = 10.0
"""Seconds after which a daemon ends although its successor has not registered everything."""
_LOOK_EVERY = 0.05
_UNDERWAY = 0.5
"""Seconds within which a call arrives that the kubelet sent before the registration of the next daemon."""

Taken = TypeVar("Taken")


class Succession:
    """The part of one daemon in the succession of daemons in a plugin directory."""

    def __init__(self, directory: PluginDirectory) -> None:
        """Stand by, or end, in `directory`."""
        self._directory = directory
        self._successor: Lock | None = None

    @property
    def is_needed(self) -> bool:
        """Whether another daemon serves the directory now."""
        return _is_locked(self._directory, LOCK_FILE)

    async def line_up(self) -> None:
        """Wait until no third daemon stands by, and stand by from then on; raises GpushareError if that cannot be."""
        path = self._directory.path / SUCCESSOR_FILE
        try:
            self._successor = await _free(partial(lock, path), LockedError)
        except OSError as error:
            raise GpushareError(f"{path} cannot be locked to stand by: {error}; remove that file") from error

    async def follow(self) -> None:
        """Wait until no other daemon serves the directory, and claim the directory, if the directory can be used."""
        try:
            await _free(self._directory.claim, AlreadyServedError)
        except OSError:
            pass  # as at every start: the sessions claim the directory later
        except BaseException:
            self._close()
            raise

    @property
    def takes_over(self) -> bool:
        """Whether the daemon before may still answer the kubelet."""
        return self._successor is not None

    async def finish(self, is_registered: Callable[[], bool]) -> None:
        """Let the daemon before end as soon as `is_registered`; return at once where none was before."""
        while self._successor is not None:
            if is_registered():
                self._close()
            else:
                await asyncio.sleep(_LOOK_EVERY)

    @contextlib.asynccontextmanager
    async def handing_over(self, is_answering: Callable[[], bool]) -> AsyncIterator[None]:
        """At the end of the context, leave the directory to a daemon that stands by, and wait for its registration.

        The wait is limited to LONGEST_HANDOVER. Afterwards, calls are still answered that the kubelet sent before the
        registration; `is_answering` is whether one is being answered.
        """
        try:
            yield
        finally:
            self._close()
            if self._has_successor():
                _log.info("handing_over", seconds=LONGEST_HANDOVER)
                self._directory.leave()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LONGEST_HANDOVER):
                        while self._has_successor():  # noqa: ASYNC110 - a lock sets no event
                            await asyncio.sleep(_LOOK_EVERY)
                        await asyncio.sleep(_UNDERWAY)
                        while is_answering():  # noqa: ASYNC110 - as above
                            await asyncio.sleep(_LOOK_EVERY)

    def _has_successor(self) -> bool:
        return _is_locked(self._directory, SUCCESSOR_FILE)

    def _close(self) -> None:
        if self._successor is not None:
            self._successor.close()
            self._successor = None


async def _free(take: Callable[[], Taken], taken: type[GpushareError]) -> Taken:
    """Return the result of `take` as soon as `take` does not raise `taken`."""
    while True:
        try:
            return take()
        except taken:
            await asyncio.sleep(_LOOK_EVERY)


def _is_locked(directory: PluginDirectory, name: str) -> bool:
    try:
        return is_locked(directory.path / name)
    except OSError:
        return False
