"""A node in small, without sockets: its kubelet, a cluster, and a daemon that can be killed between any two lines.

The ledger, the preparation of claims with its files, and the offer of units are the real ones.
"""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.published import Published
from gpushare_plugin.claims.claim import AllocatedClaim, AllocatedDevice, ClaimRefusedError
from gpushare_plugin.claims.devices import device_name
from gpushare_plugin.core.holding import Confirmed, Holding
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser, PreparedDevice
from gpushare_plugin.node.claims.cdi_files import CdiFiles
from gpushare_plugin.node.claims.given import GivenFile
from gpushare_plugin.node.claims.gpus import ClaimGpus, offered_devices
from gpushare_plugin.node.claims.hand_over import ClaimStanding, HandOver
from gpushare_plugin.node.claims.preparation import Preparation
from gpushare_plugin.node.claims.records import ClaimRecords
from gpushare_plugin.node.news.news import News
from gpushare_plugin.node.offer import NodeOffer
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from gpushare_plugin.testing.runtime.edits import edits_of
from tests.nodes import a_node
from tests.unit.sharing.settings import memory, planned, settings, time_slicing

GIB = 1024
CARD_MIB = 80 * GIB
NODE = a_node(*[CARD_MIB] * 3)
GPUS = [gpu.uuid for gpu in NODE.gpus]
DRIVER = "gpu.example.com"
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
STALE_SECONDS = 20.0
"""For how long the scheduler may go by ResourceSlices that are not the newest."""

T = TypeVar("T")


class KilledError(BaseException):
    """The daemon was killed."""


@dataclass(eq=False)
class SimulatedPod:
    """A pod with a claim, or with units of the device plugin."""

    name: str
    claim: AllocatedClaim | None = None
    units: frozenset[str] = frozenset()
    resource: str = ""
    answer: tuple[PreparedDevice, ...] | None = None
    running_mib: dict[str, int] = field(default_factory=dict)
    """The memory that the running container may use, by the UUID of the GPU; empty without a container."""
    ended: bool = False
    """Whether the container has ended, and only the kubelet has not given the claim back."""


class SimulatedDaemon:
    """One life of the daemon: all that is in memory."""

    def __init__(self, node: "SimulatedNode") -> None:
        """Begin with what is in files."""
        self.node = node
        self.records = ClaimRecords(node.directory / "claims", node.boot)
        self.standing = Published(ClaimStanding())
        gpus = ClaimGpus(self.standing, GivenFile(node.directory))
        self.preparation = Preparation(
            DRIVER, self.records, CdiFiles(node.cdi, DRIVER), node.find, gpus, lambda _pod: False
        )
        self.offer = NodeOffer(News(), node.clock)
        self.hand_over: HandOver
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Do what the daemon does before it offers anything, and go on in the background."""
        await self.preparation.look()
        self.hand_over = HandOver(GivenFile(self.node.directory), self.preparation.prepared.value, self.standing)
        self.offer.start(self.node.holdings(), NODE, {})
        self.apply()
        still, allocated = self.preparation.still, self.node.all_allocated
        run = self.hand_over.run(self.node.shown, device_name, still, allocated, self.apply)
        self.tasks = [asyncio.create_task(run), asyncio.create_task(self._ask())]

    def apply(self) -> None:
        """Do what `ServedNode.apply` does, as far as the ledger is concerned."""
        plan = self.hand_over.hold_back(self.node.plan, {})
        self.offer.advance(plan, NODE)
        self.hand_over.settle(self.offer.occupied(NODE))
        self.node.publish(
            offered_devices(self.standing.value, self.node.snapshot, self.preparation.prepared.value).devices
        )

    async def stop(self) -> None:
        """End the tasks."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _ask(self) -> None:
        """Ask the kubelet for holdings, as the daemon does while units are retired."""
        while True:
            await asyncio.sleep(2.0)
            self.offer.update_holdings(Confirmed.of(self.node.holdings(), self.node.clock()))
            self.apply()


class SimulatedNode:
    """The node, its kubelet and the cluster, as far as GPUs are concerned."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        """Begin without pods; all that is chosen is drawn from `rng`."""
        self.directory, self.cdi = folder / "driver", folder / "cdi"
        self.directory.mkdir()
        self.cdi.mkdir()
        self.rng = rng
        self.boot = "boot-0"
        self.clock = asyncio.get_running_loop().time
        self.pods: dict[str, SimulatedPod] = {}
        self.claims: dict[ClaimId, AllocatedClaim] = {}
        self.shown: Published[frozenset[str] | None] = Published(None)
        self._seen: list[tuple[float, frozenset[str]]] = []
        self.daemon: SimulatedDaemon | None = None
        self.done: Counter[str] = Counter()
        self._names = 0
        self.configure(GPUS[:1], by_memory=True)

    # ------------------------------------------------------------------ config

    def configure(self, by_claim: Iterable[str], *, by_memory: bool) -> None:
        """Give these GPUs by claim, in one of two ways."""
        sharing = memory(isolation="hami-core")
        if not by_memory:
            sharing = time_slicing({"name": "nvidia.com/gpu", "replicas": 4, "isolation": "hami-core"})
        uuids = list(by_claim)
        sections: dict[str, object] = {"sharing": sharing, **({"dra": {"devices": uuids}} if uuids else {})}
        self.plan: Plan = planned(NODE, **sections)
        assert self.plan.problems == ()
        self.snapshot = planned_snapshot(settings(**sections), NODE, self.plan)

    # ------------------------------------------------------------------ cluster

    def publish(self, devices: Iterable[Any]) -> None:
        """Show devices in the ResourceSlices."""
        names = frozenset(each.name for each in devices)
        if self.shown.value != names:
            self.shown.publish(names)
            self._seen.append((self.clock(), names))

    def schedulable(self) -> list[str]:
        """Return the names of devices that the scheduler knows, perhaps not of the newest ResourceSlices."""
        recent = [names for at, names in self._seen if self.clock() - at < STALE_SECONDS]
        return sorted(frozenset().union(*recent, self._seen[-1][1] if self._seen else frozenset()))

    async def find(self, id_: ClaimId) -> AllocatedClaim:
        """Return a claim."""
        await asyncio.sleep(0.01)
        if id_ not in self.claims:
            raise ClaimRefusedError("not-found", f"claim {id_.label} does not exist any more")
        return self.claims[id_]

    async def all_allocated(self) -> Iterable[AllocatedClaim]:
        """Return all claims that are allocated."""
        await asyncio.sleep(0.01)
        return tuple(self.claims.values())

    def claimed_pod(self) -> SimulatedPod | None:
        """Allocate a device to a claim of a new pod, whether there is room or not."""
        names = self.schedulable()
        if not names:
            return None
        name, device = self._name(), self.rng.choice(names)
        way = next((gpu.way for uuid, gpu in self._ways().items() if device_name(uuid) == device), "memory")
        consumed = {"memory": self.rng.randint(1, 50) * GIB * MIB, "compute": 0}
        if way == "replicas":
            consumed = {"shares": 1, "memory": 0}
        share = AllocatedDevice("gpu", "node", device, f"share-{name}", consumed)
        id_ = ClaimId("default", name, f"uid-{name}")
        self.claims[id_] = AllocatedClaim(id_, (share,), (ClaimUser(name, name),))
        pod = self.pods[name] = SimulatedPod(name, self.claims[id_])
        return pod

    def _ways(self) -> Mapping[str, Any]:
        return self.daemon.standing.value.claimed if self.daemon else {}

    # ------------------------------------------------------------------ kubelet

    def holdings(self) -> tuple[Holding, ...]:
        """Return the units that containers hold."""
        return tuple(
            Holding("default", pod.name, "main", pod.resource, pod.units, pod.name)
            for pod in self.pods.values()
            if pod.units
        )

    def unit_pod(self) -> SimulatedPod | None:
        """Give a new pod some free units of a GPU."""
        if self.daemon is None:
            return None
        held = {id_ for pod in self.pods.values() for id_ in pod.units}
        offers = [
            (resource, [unit.id for unit in units if unit.id not in held])
            for resource in self.daemon.offer.resources.values()
            for units in resource.units.by_gpu.values()
        ]
        offers = [(resource, free) for resource, free in offers if free]
        if not offers:
            return None
        resource, free = self.rng.choice(offers)
        ids = frozenset(free[: self.rng.randint(1, len(free))])
        grant = resource.granted(ids)
        assert grant is not None
        pod = SimulatedPod(self._name(), units=ids, resource=resource.name)
        pod.running_mib = {resource.units[next(iter(ids))].gpu: _limit(grant.environment)}
        self.pods[pod.name] = pod
        return pod

    async def start(self, pod: SimulatedPod) -> None:
        """Have the claim of a pod prepared, and start its container; nothing happens where the daemon is away."""
        assert pod.claim is not None
        if self.daemon is None:
            return
        answer = (await self.daemon.preparation.prepare([pod.claim.id]))[pod.claim.id.uid]
        if isinstance(answer, str):
            self.done["refused"] += 1
            return
        assert pod.answer is None or pod.answer == answer, (pod, answer)
        pod.answer = answer
        self.run(pod)

    def run(self, pod: SimulatedPod) -> None:
        """Start the container of a prepared pod."""
        assert pod.answer is not None
        names = [name for device in pod.answer for name in device.cdi_devices if name.startswith(DRIVER)]
        pod.running_mib = {pod.answer[0].gpu: _limit(edits_of(names, [self.cdi]).environment)}
        self.done["started"] += 1

    async def end(self, pod: SimulatedPod) -> None:
        """End the container of a pod, and give its claim back, now or once the daemon is there."""
        pod.running_mib, pod.ended = {}, True
        if pod.claim is not None:
            if self.daemon is None:
                return
            error = (await self.daemon.preparation.unprepare([pod.claim.id]))[pod.claim.id.uid]
            assert not error
            self.claims.pop(pod.claim.id, None)
        self.pods.pop(pod.name, None)

    def force_deletion(self, pod: SimulatedPod) -> None:
        """Free the claim of a pod in the API, while its container runs on."""
        assert pod.claim is not None
        self.claims.pop(pod.claim.id, None)

    # ------------------------------------------------------------------ the life of the daemon

    async def begin(self) -> None:
        """Start the daemon."""
        self.daemon = SimulatedDaemon(self)
        await self.daemon.start()

    async def kill(self) -> None:
        """Kill the daemon."""
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            await daemon.stop()

    async def killed_in(self, work: Awaitable[T]) -> None:
        """Do some work of the daemon, or wait, until the daemon is killed before a line chosen at random."""
        killer = _Killer(self.rng.randint(1, 120))
        sys.settrace(killer.call)
        try:
            await work
        except KilledError:
            self.done["killed"] += 1
        finally:
            sys.settrace(None)
        await self.kill()

    async def reboot(self) -> None:
        """Boot the node: no container runs, and files below /run are gone; the kubelet starts its pods again."""
        await self.kill()
        self.boot = f"boot-{self._name()}"
        for file in self.cdi.iterdir():
            file.unlink()
        for pod in [*self.pods.values()]:
            if pod.units:
                del self.pods[pod.name]
            pod.running_mib = {}

    # ------------------------------------------------------------------ what must always be true

    def check(self) -> None:
        """No GPU is used twice, and no claim in use loses its CDI file."""
        used: Counter[str] = Counter()
        for pod in self.pods.values():
            used.update(pod.running_mib)
            if pod.running_mib and pod.answer is not None:
                edits_of([each for each in pod.answer[0].cdi_devices if each.startswith(DRIVER)], [self.cdi])
        assert all(mib <= CARD_MIB for mib in used.values()), (used, self.pods)
        ways: dict[str, set[str]] = {}
        for pod in self.pods.values():
            for uuid in pod.running_mib:
                ways.setdefault(uuid, set()).add("units" if pod.units else "claims")
        assert all(len(each) == 1 for each in ways.values()), ways

    @property
    def left(self) -> Iterator[str]:
        """The files of claims."""
        yield from (file.name for file in self.cdi.iterdir())
        yield from (file.name for file in (self.directory / "claims").iterdir() if file.name not in {"lock", "writer"})

    def _name(self) -> str:
        self._names += 1
        return f"pod{self._names}"


def _limit(environment: Mapping[str, str]) -> int:
    return int(environment[LIMIT].removesuffix("m"))


class _Killer:
    """Kills the daemon before a line of the code that keeps claims."""

    def __init__(self, line: int) -> None:
        self._left = line

    def call(self, frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any] | None:
        """Follow the functions that count."""
        name = frame.f_code.co_filename
        ours = "/gpushare_plugin/node/claims/" in name or name.endswith("/replacement.py")
        # The end of a process gives its locks up, which the end of this daemon cannot.
        return self.line if ours and frame.f_code.co_name not in {"exclusive", "still", "_locked", "_lock"} else None

    def line(self, _frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        """Count a line."""
        if event == "line":
            self._left -= 1
            if self._left <= 0:  # no line follows
                raise KilledError
        return self.line
