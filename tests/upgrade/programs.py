"""A program that is exchanged for that of another build while everything around it goes on."""

import re
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from tests.process.daemon import Daemon, Event
from tests.upgrade.builds import Build

Start = Callable[[Build], AbstractAsyncContextManager[Daemon]]

USUAL = ("clients_not_verified",)
"""Warnings that say how these tests run the programs."""


class Program:
    """A place where a program of one build runs at a time.

    Each one ends well, and logs no warning and no error but the `usual` ones, of which each is a pattern for the
    beginning of event and reason.
    """

    def __init__(self, start: Start, usual: Sequence[str] = ()) -> None:
        """Start none; `start` is how one of a build runs."""
        self._start = start
        self._usual = re.compile("|".join([*USUAL, *usual]))
        self._stack = AsyncExitStack()
        self._daemon: Daemon | None = None
        self._build: Build | None = None

    @property
    def daemon(self) -> Daemon:
        """The one that runs."""
        assert self._daemon is not None
        return self._daemon

    @property
    def build(self) -> Build:
        """The build of the one that runs, or ran last."""
        assert self._build is not None
        return self._build

    @property
    def runs(self) -> bool:
        """Whether one runs."""
        return self._daemon is not None

    async def start(self, build: Build) -> None:
        """Start the program of a build."""
        assert self._daemon is None
        self._build = build
        self._daemon = await self._stack.enter_async_context(self._start(build))
        await self._daemon.logged("starting")
        build.check_running(self._daemon)

    async def stop(self, end: signal.Signals = signal.SIGTERM) -> None:
        """End the one that runs, if any; killed, it may say nothing at the end."""
        if self._daemon is None:
            return
        daemon, self._daemon = self._daemon, None
        try:
            status = await daemon.stop(end)
        finally:
            await self._stack.aclose()
        assert status == (0 if end == signal.SIGTERM else -end), str(daemon)
        self._check(daemon)

    async def exchange(self, build: Build, end: signal.Signals = signal.SIGTERM) -> None:
        """Let the program of a build follow the one that runs."""
        await self.stop(end)
        await self.start(build)

    def check(self) -> None:
        """See that the one that runs has said nothing unusual so far."""
        self._check(self.daemon)

    def _check(self, daemon: Daemon) -> None:
        found = troubles(daemon, self._usual)
        assert found == [], f"{self.build.name}: {found}"


def troubles(daemon: Daemon, usual: re.Pattern[str]) -> list[Event]:
    """Return the warnings and errors of a log, but for `usual` ones."""
    return [
        each
        for each in daemon.log
        if each["level"] not in {"debug", "info"} and not usual.match(f"{each['event']}: {each.get('reason', '')}")
    ]
