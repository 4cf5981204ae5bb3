"""A node under everything at once: faults, recoveries, new configs, cards that come and go, restarts and pods.

The test keeps an account of its own, which knows only what it did itself and what the kubelet shows.
"""

import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpushare_plugin.base.errors import ConfigError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import FailedGpu
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.node.configuration import decide
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from tests.node.living import RUNS, Life, living, written
from tests.nodes import Cards, a_gpu, a_node
from tests.unit.sharing.settings import GPU_MEM, memory, time_slicing

GPUS = 3
GOOD_PROBES = 2
SLICED = {"name": "nvidia.com/gpu", "replicas": 3}
HEALTH = {"goodProbes": GOOD_PROBES, "probeSeconds": 3600, "rescanSeconds": 3600}
WAYS: tuple[dict[str, object], ...] = (
    memory(),
    memory(unit="2GiB"),
    memory(placement="spread"),
    memory(devices=[0]),
    memory(devices=[0]) | time_slicing({**SLICED, "devices": [1], "rename": "nvidia.com/gpu.shared"}),
    time_slicing(SLICED),
    time_slicing({**SLICED, "replicas": 5}),
    {},
)

gpus = st.integers(0, GPUS - 1)
RESOURCES = (GPU_MEM, GPU_MEM, "nvidia.com/gpu", "nvidia.com/gpu.shared")
admissions = st.tuples(st.just("admit"), st.integers(1, 3), st.sampled_from(RESOURCES))
deletions = st.tuples(st.just("delete"), st.integers(0, 30))
reloads = st.tuples(st.just("reload"), st.sampled_from(WAYS))
looks = st.tuples(st.just("look"))
# Faults are rarer than what mends them, or soon there would be no healthy card to lose anything on.
actions = st.sampled_from(
    [
        *[admissions] * 8,
        *[deletions, reloads] * 3,
        *[looks] * 6,
        st.tuples(st.just("ask kubelet")),
        st.tuples(st.just("xid"), gpus, st.sampled_from([13, 79, 56])),
        st.tuples(st.sampled_from(["lose", "remove"]), gpus),
        *[st.tuples(st.sampled_from(["find", "insert"]), gpus)] * 3,
        st.tuples(st.sampled_from(["restart kubelet", "kill kubelet", "bad reload"])),
        *[st.tuples(st.just("restart gpushare"), st.sampled_from(WAYS))] * 2,
    ]
).flatmap(lambda action: action)


@dataclass
class Card:
    """What the test knows of a card: how it is now, what it owes before it may be trusted again."""

    present: bool = True
    lost: bool = False
    faulty: bool = False
    needs_reset: bool = False
    seen_lost: bool = False
    good: int = 0

    def fails(self, *, needs_reset: bool = False) -> None:
        """Take note of an event."""
        self.faulty, self.good, self.seen_lost = True, 0, False
        self.needs_reset = self.needs_reset or needs_reset

    def is_looked_at(self, *, known: bool) -> None:
        """Take note of a look at the card, of which the node has heard before if `known`."""
        if self.lost or not self.present:
            if known:
                self.faulty, self.good, self.seen_lost = True, 0, True
        elif self.faulty and (self.seen_lost or not self.needs_reset):
            self.good += 1
            if self.good == GOOD_PROBES:
                self.faulty = self.needs_reset = self.seen_lost = False


@dataclass
class World:
    """A node, what was done to it, and who holds what."""

    life: Life
    cards: list[Card] = field(default_factory=lambda: [Card() for _ in range(GPUS)])
    known: set[int] = field(default_factory=lambda: set(range(GPUS)))
    pods: list[tuple[Pod, str, frozenset[str]]] = field(default_factory=list)  # with resource and IDs
    before_us: set[str] = field(default_factory=set)  # IDs held under resources that this life did not begin with

    @property
    def held(self) -> dict[str, str]:
        """Return the IDs that pods hold, and the resource of each."""
        return {id_: resource for _, resource, ids in self.pods for id_ in ids}

    def show_cards(self) -> None:
        """Let the next look find the cards as they are now."""
        node = a_node(*[8192] * GPUS)
        self.life.cards.inventory = replace(
            node,
            cards=tuple(node.cards[i] for i, card in enumerate(self.cards) if card.present and not card.lost),
            failed=tuple(
                FailedGpu(i, "GPU is lost", a_gpu(i).uuid, lost=True)
                for i, card in enumerate(self.cards)
                if card.present and card.lost
            ),
        )

    async def settled(self) -> None:
        """Wait until the kubelet has every list as the node means it."""
        await self.life.kubelet.wait_for(lambda _: all(map(self._listed, self.life.node.sessions.values())))

    def _listed(self, session: Any) -> bool:
        resource = session.resource
        meant = {
            id_: "Unhealthy" if unit.gpu in resource.unhealthy else "Healthy" for id_, unit in resource.units.items()
        }
        meant |= dict.fromkeys(resource.retired, "Unhealthy")
        seen = {id_: device.health for id_, device in self.life.kubelet.devices(resource.name).items()}
        return seen == meant and self.life.kubelet.healthy(resource.name) == {
            id_ for id_, health in meant.items() if health == "Healthy"
        }


async def act(world: World, number: int, action: tuple[Any, ...]) -> None:  # noqa: C901, PLR0912 - a table of happenings
    """Do one thing that happens to a node."""
    node, kubelet, cards = world.life.node, world.life.kubelet, world.cards
    match action:
        case ("admit", size, resource):
            await admit(world, Pod(f"pod-{number}", [Container("main", {resource: size})]), resource)
        case ("delete", which) if world.pods:
            kubelet.delete(world.pods.pop(which % len(world.pods))[0])
        case ("xid", gpu, xid):
            node.event(GpuEvent(a_gpu(gpu).uuid, xid, f"XID {xid}"))
            if xid != 13:
                cards[gpu].fails(needs_reset=xid == 79)
        case ("lose" | "find" as how, gpu):
            cards[gpu].lost = how == "lose"
        case ("remove" | "insert" as how, gpu):
            cards[gpu].present = how == "insert"
        case ("look",):
            world.show_cards()
            await node.look()
            for index, card in enumerate(cards):
                card.is_looked_at(known=index in world.known)
            world.known = {i for i, card in enumerate(cards) if card.present and (i in world.known or not card.lost)}
        case ("reload", sharing):
            await world.life.reload(health=HEALTH, sharing=sharing)
        case ("bad reload",):
            await world.life.reload(health=HEALTH, sharing=memory(unit="GB"))
        case ("ask kubelet",):
            await node.ask_kubelet()
        case ("restart gpushare", sharing):
            await restart_gpushare(world, sharing)
        case ("restart kubelet" | "kill kubelet" as how,):
            await kubelet.restart(graceful=how == "restart kubelet")


async def restart_gpushare(world: World, sharing: dict[str, object]) -> None:
    """Restart gpushare, which sees the GPUs as they are now and knows of no earlier fault."""
    world.show_cards()
    try:
        decide(written(world.life.file, health=HEALTH, sharing=sharing), world.life.cards.inventory)
    except ConfigError:
        return  # it would not start: this config names a GPU that is not present
    await world.life.restart(health=HEALTH, sharing=sharing)
    world.before_us = {id_ for id_, resource in world.held.items() if resource not in world.life.node.sessions}
    for card in world.cards:
        card.faulty = card.needs_reset = card.seen_lost = False
        card.good = 0
    world.known = {i for i, card in enumerate(world.cards) if card.present and not card.lost}


async def admit(world: World, pod: Pod, resource: str) -> None:
    """Let a pod in, which may fail; what it got must be of a healthy GPU, and held by no other pod."""
    try:
        admitted = await world.life.kubelet.admit(pod)
    except AdmissionError:
        return
    ids = admitted.containers["main"].device_ids.get(resource, frozenset())
    if not ids:  # a resource the kubelet never heard of asks for nothing
        world.life.kubelet.delete(pod)
        return
    assert not ids & set(world.held), "a unit was given to two pods"
    for index, card in enumerate(world.cards):
        if card.faulty:
            assert a_gpu(index).uuid not in admitted.containers["main"].environment["NVIDIA_VISIBLE_DEVICES"]
    world.pods.append((pod, resource, ids))


def check(world: World) -> None:
    """Compare the accounts."""
    kubelet, node = world.life.kubelet, world.life.node
    for id_, resource in world.held.items():
        if id_ in world.before_us and resource not in node.sessions:
            continue
        assert id_ in kubelet.devices(resource), f"{id_} is in use and vanished"
    for session in node.sessions.values():
        for index, card in enumerate(world.cards):
            uuid = a_gpu(index).uuid
            if uuid in session.resource.gpus:
                assert (uuid in session.resource.unhealthy) == card.faulty, f"GPU {index}: {card}"
    for index in range(GPUS):
        uuid = a_gpu(index).uuid
        kinds = {
            (resource, id_.split("-")[1] if resource == GPU_MEM else "")
            for id_, resource in world.held.items()
            if id_.startswith((uuid, f"{index:08x}-"))
        }
        assert len(kinds) <= 1, f"GPU {index} is in use in two ways: {kinds}"


@asynccontextmanager
async def a_world(seed: int) -> AsyncIterator[World]:
    """Run a node; the kubelet draws at random from `seed`."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder:
        kubelet = EmbeddedKubelet(Path(folder), rng=random.Random(seed), clock=lambda: 20 * time.monotonic())  # noqa: S311 - no secret
        async with kubelet, living(kubelet, Cards(a_node(*[8192] * GPUS)), health=HEALTH, sharing=memory()) as life:
            yield World(life)


@settings(max_examples=RUNS, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**32), st.lists(actions, min_size=30, max_size=80))
async def test_random_steps_never_lose_a_unit_in_use(seed: int, happenings: list[tuple[Any, ...]]) -> None:
    """Thousands of steps of everything at random.

    At every step the accounts agree, no unit in use has vanished, no fault is forgotten, no unit of a faulty GPU was
    allocated, and no GPU is in use in two modes at once.
    """
    async with a_world(seed) as world:
        await world.settled()
        for number, action in enumerate(happenings):
            await act(world, number, action)
            await world.settled()
            check(world)
