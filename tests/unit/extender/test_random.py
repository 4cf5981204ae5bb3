"""A random life of a cluster over real HTTP: pods come, are scheduled, and go, while connections fail in every way.

Each run has the same steps in the same order. `GPUSHARE_RANDOM_STEPS` is their number, `GPUSHARE_RANDOM_SEED` a number
that makes others.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpushare_plugin.extender.binder import BinderTiming
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Refusal
from tests.logs import logged
from tests.unit.extender.extenders import (
    PODS,
    Asking,
    Json,
    a_pod,
    assert_none_promised_twice,
    extender,
    node,
    promised,
)

STEPS = int(os.environ.get("GPUSHARE_RANDOM_STEPS", "150"))
SEED = int(os.environ.get("GPUSHARE_RANDOM_SEED", "1"))
TIMING = BinderTiming(binding=0.2, between=0.05, abandoned=0.4, every=0.02)
"""Bindings are lost after 0.2 s; the server carries none out later than `abandoned`."""


@dataclass
class Life:
    """A cluster, an extender, a scheduler that knows no GPUs, and chance."""

    server: ApiServer
    asking: Asking
    chance: random.Random
    nodes: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, Json] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    made: int = 0

    async def step(self) -> None:
        """Let one thing happen."""
        steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self.pods_come),
            (10, self.pods_are_scheduled),
            (4, self.pods_go),
            (1, self.a_node_changes),
            (2, self.answers_are_lost),
            (1, self.watches_are_late),
            (2, self.watches_break),
            (1, self.versions_expire),
        ]
        (act,) = self.chance.choices([act for _, act in steps], [weight for weight, _ in steps])
        await act()
        assert_none_promised_twice(self.server)

    async def pods_come(self) -> None:
        """Create a few pods, some of them for two GPUs."""
        for _ in range(self.chance.randrange(1, 4)):
            self.made += 1
            name = f"p{self.made}"
            labels = {"aliyun.com/gpu-count": "2"} if self.chance.random() < 0.2 else {}
            self.waiting[name] = a_pod(self.server, name, 2 * self.chance.randrange(1, 9), labels=labels)

    async def pods_are_scheduled(self) -> None:
        """Schedule several pods at once, as no single scheduler does; what fails is tried again another time."""
        names = self.chance.sample(sorted(self.waiting), min(len(self.waiting), 4))
        await asyncio.gather(*(self._schedule(name) for name in names))

    async def _schedule(self, name: str) -> None:
        asked = self.waiting[name]
        fitting = await self.asking.fits(asked, *self.nodes)
        scores = await self.asking.scores(asked, *fitting) if fitting else {}
        if scores and not await self.asking.bind(asked, max(scores, key=lambda each: scores[each])):
            self.bound.add(name)
            self.waiting.pop(name, None)

    async def pods_go(self) -> None:
        """End or delete some pods, also those of which nobody knows whether they are bound."""
        there = sorted({*self.bound, *self.waiting})
        for name in self.chance.sample(there, min(len(there), 2)):
            if self.chance.random() < 0.3 and name in self.bound:
                self.server.store.patch(PODS, name, {"status": {"phase": "Succeeded"}})
                continue
            self.server.store.delete(PODS, name)
            self.bound.discard(name)
            self.waiting.pop(name, None)

    async def a_node_changes(self) -> None:
        """Add a node, or a GPU to one."""
        name = f"m{self.chance.randrange(5)}"
        known = name in self.nodes
        self.nodes[name] = self.nodes.get(name, 0) + 1
        body = node(name, *[16] * self.nodes[name])
        if known:
            self.server.store.patch(NODES, name, body)
        else:
            self.server.store.create(NODES, body)

    async def answers_are_lost(self) -> None:
        """Have the next Binding not done, or done without an answer."""
        status = self.chance.choice([0, 0, 429, 500, 503])
        # A server that is too busy has not done it.
        carried_out = status != 429 and self.chance.random() < 0.5
        refusal = Refusal(status, verb="create", times=1, resource="pods/binding", carried_out=carried_out)
        self.server.refusals = [each for each in self.server.refusals if each.times] + [refusal]
        self.server.late["pods/binding"] = self.chance.choice([0.0, 0.0, 0.05, 0.3])

    async def watches_are_late(self) -> None:
        """Have watches be behind from now on, or not any more."""
        self.server.watches.delay = self.chance.choice([0.0, 0.0, 0.2, 1.0])

    async def watches_break(self) -> None:
        """End all watches in the middle of a line."""
        await self.server.watches.cut(last_words=b'{"type":"MODI')

    async def versions_expire(self) -> None:
        """Make what was watched from too old."""
        self.server.store.forget()

    async def settle(self) -> None:
        """Let nothing go wrong any more; then extender and API server agree, and all that fits is bound."""
        self.server.refusals.clear()
        self.server.late.clear()
        self.server.watches.delay = 0.0
        await self.server.watches.cut()
        await self.asking.agrees()


@asynccontextmanager
async def told() -> AsyncIterator[None]:
    """Add what the extender logged last to a failure: what led to it has happened long before it is seen."""
    with logged() as events:
        try:
            yield
        except (AssertionError, TimeoutError) as failure:
            failure.add_note("\n".join(map(str, events[-40:])))
            raise


async def test_random_events_never_promise_a_gpu_twice(tmp_path: Path) -> None:
    """Whatever happens in whatever order, no GPU is promised twice, and when it is quiet the accounts are equal."""
    async with ApiServer() as server:
        for number in range(3):
            server.store.create(NODES, node(f"m{number}", 16))
        async with told(), extender(server, tmp_path, binder_timing=TIMING) as asking:
            life = Life(server, asking, random.Random(SEED), {f"m{number}": 1 for number in range(3)})  # noqa: S311 - no secret
            for number in range(STEPS):
                await life.step()
                if number % 50 == 49:
                    await life.settle()
            await life.settle()
            for found in server.store.find(PODS):
                server.store.delete(PODS, found["metadata"]["name"])
            await asking.agrees()
            assert (await asking.used(), promised(server)) == ({}, {})
