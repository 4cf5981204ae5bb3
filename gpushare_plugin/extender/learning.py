"""What an extender learns from the pods that it is asked about, for the policy `packing`; no answer waits for that."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.packed import PackedCluster
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.packing.policy import learned
from gpushare_plugin.packing.seen import Lesson

_log = structlog.get_logger()

_TOGETHER = 500
"""The most pods that are taken in at the start before waiting requests are answered."""

_TURN = 0.0005
"""Seconds that the thread of a lesson computes before the event loop has its turn.

An answer waits for a turn at each of its system calls. With Python's 5 ms, an answer during a lesson takes up to 20 ms.
"""


class Learning:
    """Learns in lessons, each in a thread; the event loop puts the result into effect between two answers."""

    def __init__(self, account: ClusterAccount, taught: Callable[[Lesson], None]) -> None:
        """Learn for the pods of an account; `taught` is called after each lesson."""
        self._account = account
        self._taught = taught
        self._due = asyncio.Event()
        self._in_turn = asyncio.Lock()
        self.packed = PackedCluster(account)
        """The policy in the cluster."""

    def see(self, pod: Pod) -> None:
        """Take note of a pod that somebody asks about."""
        if self.packed.see(pod):
            self._due.set()

    async def remember(self) -> None:
        """Take note of all pods of the cluster that were not seen yet, the oldest first, and learn at once."""
        pods = sorted(self._account.pods.values(), key=lambda pod: pod.created)
        lesson: Lesson | None = None
        for begin in range(0, len(pods), _TOGETHER):
            lesson = self.packed.remember(pods[begin : begin + _TOGETHER]) or lesson
            await asyncio.sleep(0)
        self.packed.refresh()
        if lesson is not None:
            await self._learn(lesson)

    async def run(self) -> None:
        """Learn whenever a lesson is due; runs until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await self._learn(self.packed.lesson())

    async def _learn(self, lesson: Lesson) -> None:
        async with self._in_turn:  # or an older lesson could be the last to take effect
            try:
                with _short_turns():
                    found = await asyncio.to_thread(learned, lesson)
            except Exception:  # noqa: BLE001 - a defect in a lesson must not end the answers
                _log.exception("lesson_crashed", remedy="report this as a defect of gpushare")
                return
            self.packed.apply(found)
            self._taught(lesson)


@contextmanager
def _short_turns() -> Iterator[None]:
    """Have threads take turns often while the context lasts."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
