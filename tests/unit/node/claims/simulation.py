"""A node in small, without sockets: its kubelet, a cluster, and one or two daemons, as during a rolling update."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.capacities import COMPUTE, MEMORY, SHARES
from gpushare_plugin.claims.claim import AllocatedClaim, AllocatedDevice, ClaimRefusedError
from gpushare_plugin.claims.device import Device
from gpushare_plugin.claims.devices import device_name
from gpushare_plugin.core.holding import Holding
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser, PreparedDevice
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.node.claims.hand_over import WITHDRAWN_SECONDS
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from gpushare_plugin.testing.runtime.edits import edits_of
from tests.nodes import a_node
from tests.unit.node.claims.simulated_daemon import DRIVER, Killer, SimulatedDaemon
from tests.unit.sharing.settings import memory, planned, settings, time_slicing

GIB = 1024
CARD_MIB = 80 * GIB
NODE = a_node(*[CARD_MIB] * 3)
GPUS = [gpu.uuid for gpu in NODE.gpus]
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
STALE_SECONDS = 4 * WITHDRAWN_SECONDS
"""For how long the scheduler may go by ResourceSlices that are not the newest: longer than a GPU takes to leave."""
MOST_LINES = 120
"""The most lines that a daemon runs before it is killed."""

Free = Mapping[str, bool]
"""The devices that claims can get: whether by shares, by name."""


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


class SimulatedNode:
    """The node, its kubelet and the cluster, as far as GPUs are concerned."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        """Begin without pods; all that is chosen is drawn from `rng`."""
        self.directory, self.copies, self.cdi = folder / "driver", folder / "copies", folder / "cdi"
        self.directory.mkdir()
        self.cdi.mkdir()
        self.rng = rng
        self.boot = "boot-0"
        self.inventory = NODE
        self.pods: dict[str, SimulatedPod] = {}
        self.claims: dict[ClaimId, AllocatedClaim] = {}
        self.shown: Published[frozenset[str] | None] = Published(None)
        self._seen: list[tuple[float, Free]] = [(self.clock(), {})]
        self.daemon: SimulatedDaemon | None = None
        """The daemon that serves the device plugin, too."""
        self.standing_by: SimulatedDaemon | None = None
        """The daemon that prepares claims beside that one, and takes over."""
        self.faults: set[str] = set()
        """The GPUs with a fault, by UUID."""
        self.cordons: set[str] = set()
        """The cordoned GPUs, by UUID."""
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
        self._planned = planned_snapshot(settings(**sections), NODE, self.plan)

    @property
    def snapshot(self) -> Snapshot:
        """The GPUs as the config shares them, with faults and cordons."""
        return replace(
            self._planned,
            unhealthy=dict.fromkeys(self.faults, "Xid 79"),
            cordoned=dict.fromkeys(self.cordons, "the annotation"),
        )

    def clock(self) -> float:
        """Return the time in seconds."""
        return asyncio.get_running_loop().time()

    # ------------------------------------------------------------------ cluster

    def publish(self, devices: Iterable[Device]) -> None:
        """Show devices in the ResourceSlices, and devices with taints to no further claim."""
        shown = tuple(devices)
        free = {each.name: SHARES in each.capacities for each in shown if not each.taints}
        if free != self.free:
            self._seen.append((self.clock(), free))
        names = frozenset(each.name for each in shown)
        if names != self.shown.value:
            self.shown.publish(names)

    @property
    def free(self) -> Free:
        """What claims can get by the newest ResourceSlices."""
        return self._seen[-1][1]

    def schedulable(self) -> list[tuple[str, bool]]:
        """Return the devices that the scheduler knows, perhaps not by the newest ResourceSlices."""
        recent = [free.items() for at, free in self._seen if self.clock() - at < STALE_SECONDS]
        return sorted({*self.free.items()}.union(*recent))

    async def allocated(self, claim_id: ClaimId) -> AllocatedClaim:
        """Return a claim."""
        await asyncio.sleep(0.01)
        if claim_id not in self.claims:
            raise ClaimRefusedError("not-found", f"claim {claim_id.label} does not exist any more")
        return self.claims[claim_id]

    async def all_allocated(self) -> Iterable[AllocatedClaim]:
        """Return all claims that are allocated."""
        await asyncio.sleep(0.01)
        return tuple(self.claims.values())

    def claimed_pod(self) -> SimulatedPod | None:
        """Allocate a device to a claim of a new pod, whether there is room or not."""
        devices = self.schedulable()
        if not devices:
            return None
        name, (device, by_shares) = self._name(), self.rng.choice(devices)
        consumed = {MEMORY: self.rng.randint(1, 50) * GIB * MIB, COMPUTE: 0}
        if by_shares:
            consumed = {SHARES: 1, MEMORY: 0}
        share = AllocatedDevice("gpu", "node", device, f"share-{name}", consumed)
        id_ = ClaimId("default", name, f"uid-{name}")
        self.claims[id_] = AllocatedClaim(id_, (share,), (ClaimUser(name, name),))
        pod = self.pods[name] = SimulatedPod(name, self.claims[id_])
        return pod

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
            for gpu, units in resource.units.by_gpu.items()
            if gpu.uuid not in self.faults | self.cordons
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

    @property
    def daemons(self) -> list[SimulatedDaemon]:
        """The daemons that prepare claims."""
        return [each for each in (self.daemon, self.standing_by) if each is not None]

    def called(self) -> SimulatedDaemon | None:
        """Return the daemon that the kubelet calls, which may be any."""
        return self.rng.choice(self.daemons) if self.daemons else None

    async def start(self, pod: SimulatedPod, daemon: SimulatedDaemon | None) -> None:
        """Have a daemon prepare the claim of a pod, and start its container; nothing happens without a daemon."""
        assert pod.claim is not None
        if daemon is None:
            return
        answer = await daemon.does(daemon.prepare(pod.claim.id))
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

    async def end(self, pod: SimulatedPod, daemon: SimulatedDaemon | None) -> None:
        """End the container of a pod, and give its claim back, now or once a daemon is there."""
        pod.running_mib, pod.ended = {}, True
        if pod.claim is not None:
            if daemon is None:
                return
            await daemon.does(daemon.unprepare(pod.claim.id))
            self.claims.pop(pod.claim.id, None)
        self.pods.pop(pod.name, None)

    def force_deletion(self, pod: SimulatedPod) -> None:
        """Free the claim of a pod in the API, while its container runs on."""
        assert pod.claim is not None
        self.claims.pop(pod.claim.id, None)

    # ------------------------------------------------------------------ the lives of daemons

    async def begin(self) -> None:
        """Have a daemon serve everything: one that stands by, or else a new one."""
        self.daemon, self.standing_by = self.standing_by or SimulatedDaemon(self), None
        await self.daemon.does(self.daemon.start())

    async def stand_by(self) -> None:
        """Start a daemon beside the daemon that serves."""
        daemon = SimulatedDaemon(self)
        await daemon.does(daemon.stand_by())
        self.standing_by = daemon

    async def kill(self, daemon: SimulatedDaemon) -> None:
        """End a daemon."""
        self._forget(daemon)
        await daemon.stop()

    async def killed_in(self, daemon: SimulatedDaemon, *work: Coroutine[Any, Any, object]) -> None:
        """Do some work until a daemon is killed before a line chosen at random, or at the end."""
        killer = Killer(daemon, self.rng.randint(1, MOST_LINES))
        await killer.follows(*work)
        self.done["killed"] += killer.killed
        self._forget(daemon)

    def _forget(self, daemon: SimulatedDaemon) -> None:
        if daemon is self.daemon:
            self.daemon = None
        else:
            self.standing_by = None

    async def reboot(self) -> None:
        """Boot the node: no container runs, and files below /run are gone; the kubelet starts its pods again."""
        for daemon in self.daemons:
            await self.kill(daemon)
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
        closed = {device_name(uuid) for uuid in self.faults | self.cordons}
        assert self.daemon is None or closed.isdisjoint(self.free), (closed, self.free)

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
