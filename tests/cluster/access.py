"""A program's own access to the API server, so that one program alone can be late, or killed between two writes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpushare_plugin.testing.cluster import ApiServer, Asked, Store
from gpushare_plugin.testing.cluster.server import Refusal

WRITES = frozenset({"create", "update", "patch", "delete"})


@dataclass(slots=True)
class Access:
    """One access to the objects of a cluster; all accesses show the same objects."""

    server: ApiServer
    kubeconfig: Path

    def late(self, seconds: float) -> None:
        """Let watches be that late."""
        self.server.watches.delay = seconds

    def cut(self) -> None:
        """Let nothing through any longer."""
        self.server.refusals.append(Refusal(0))

    def cut_at_write(self, writes: int, then: Callable[[], object], *, carried_out: bool) -> None:
        """Let some writes through, cut the connection at the next one and call `then`; nothing gets through after it.

        The write may be `carried_out` all the same: then its answer is what gets lost.
        """

        def reached() -> None:
            self.cut()
            then()

        self.server.refusals.append(_LastWrite(0, carried_out=carried_out, before=writes, reached=reached))

    def lose_answer(self) -> None:
        """Let the next change of a Node be carried out, and its answer get lost."""
        self.server.refusals.append(Refusal(0, verb="patch", times=1, resource="nodes", carried_out=True))

    def restore(self) -> None:
        """Let everything through again, at once."""
        self.server.refusals.clear()
        self.late(0)


@dataclass(slots=True)
class _LastWrite(Refusal):
    """Cuts the connection at a write after some others."""

    before: int = 0
    reached: Callable[[], object] = field(default=lambda: None)

    def takes(self, asked: Asked) -> bool:
        """Return whether this is the write."""
        if asked.verb not in WRITES or not self.times:
            return False
        self.before -= 1
        if self.before >= 0:
            return False
        self.times = 0
        self.reached()
        return True


@asynccontextmanager
async def access(store: Store, kubeconfig: Path) -> AsyncIterator[Access]:
    """Give access to the objects of `store` with a kubeconfig that is written."""
    async with ApiServer(store=store) as server:
        yield Access(server, server.kubeconfig(kubeconfig))
