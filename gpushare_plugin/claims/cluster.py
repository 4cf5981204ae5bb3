"""The claims of a cluster: the GPUs that nodes give by claim, and what claims have of each GPU."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.claims.asked import Place, PodClaim
from gpushare_plugin.claims.claim import AllocatedDevice
from gpushare_plugin.claims.device import Device
from gpushare_plugin.claims.status import DeviceStatus
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser


class GpuForClaims(Struct, frozen=True):
    """A GPU that a node gives by claim."""

    driver: str
    """The name of the DRA driver."""
    pool: str
    """The name of the pool, which is the name of the node."""
    device: Device
    """The device for the GPU."""
    offered: bool = True
    """Whether a ResourceSlice has the device; else a claim still has the device."""

    @property
    def place(self) -> Place:
        """The place of the device."""
        return self.driver, self.pool, self.device.name


class HeldByClaim(Struct, frozen=True):
    """What one claim was allocated of a device."""

    driver: str
    """The name of the DRA driver."""
    claim: ClaimId
    """The claim."""
    device: AllocatedDevice
    """The device, and what counts against the device."""
    users: tuple[ClaimUser, ...] = ()
    """The pods that the claim is reserved for."""
    status: DeviceStatus | None = None
    """What the node says that the claim got; None until the claim is prepared."""

    @property
    def place(self) -> Place:
        """The place of the device."""
        return self.driver, self.device.pool, self.device.device


class HeldGpu(Struct, frozen=True):
    """A GPU that a node gives by claim, with all that claims have of the GPU."""

    gpu: GpuForClaims
    """The GPU."""
    held: tuple[HeldByClaim, ...] = ()
    """What claims have, access for administration included."""

    @property
    def counted(self) -> tuple[HeldByClaim, ...]:
        """What counts against the GPU: everything but access for administration."""
        return tuple(each for each in self.held if not each.device.admin_access)

    @property
    def holders(self) -> list[str]:
        """The names of the claims that count, for people, in order."""
        return sorted({each.claim.label for each in self.counted})

    @property
    def taints(self) -> list[str]:
        """The keys of the taints that keep claims away."""
        return [each.key for each in self.gpu.device.taints if each.effect != "None"]

    def used(self, capacity: str) -> int:
        """Return what claims have of a capacity; all of a device that is not shared and that a claim has."""
        device = self.gpu.device
        if not device.shared and self.gpu.offered:
            return device.capacities[capacity].amount if self.counted and capacity in device.capacities else 0
        return sum(each.device.consumed.get(capacity, 0) for each in self.counted)


class OfferedDevices(Struct, frozen=True):
    """The GPUs in one ResourceSlice."""

    driver: str
    """The name of the DRA driver."""
    pool: str
    """The name of the pool, which is the name of the node."""
    generation: int
    """The version of the pool; only the ResourceSlices of the highest one count."""
    devices: tuple[Device, ...]
    """The devices that gpushare offers, in their order."""


def held_gpus(
    slices: Iterable[OfferedDevices], held: Iterable[HeldByClaim], drivers: Collection[str] | None = None
) -> Iterator[HeldGpu]:
    """Yield each GPU that gpushare gives by claim, in the order of the `slices`, with what claims have.

    Then come devices that claims have and no ResourceSlice has any more. Devices of other DRA drivers than `drivers`,
    those with GPUs in the `slices` if None, are left out.
    """
    slices = tuple(slices)
    by_place: dict[Place, list[HeldByClaim]] = {}
    for each in held:
        by_place.setdefault(each.place, []).append(each)
    for gpu in _newest(slices):
        yield HeldGpu(gpu, tuple(by_place.pop(gpu.place, ())))
    ours = {each.driver for each in slices if each.devices} if drivers is None else drivers
    for (driver, pool, name), left in by_place.items():
        if driver in ours:
            uuid = next((each.status.gpu for each in left if each.status is not None), name)
            device = Device(name, uuid, shared=left[0].device.share_id is not None)
            yield HeldGpu(GpuForClaims(driver, pool, device, offered=False), tuple(left))


def _newest(slices: Iterable[OfferedDevices]) -> Iterator[GpuForClaims]:
    """Yield the GPUs in the ResourceSlices of the newest version of each pool."""
    pools: dict[tuple[str, str], list[OfferedDevices]] = {}
    for each in slices:
        pools.setdefault((each.driver, each.pool), []).append(each)
    for (driver, pool), several in pools.items():
        newest = max(each.generation for each in several)
        for device in (device for each in several if each.generation == newest for device in each.devices):
            yield GpuForClaims(driver, pool, device)


class _ClaimedNode:
    """The ResourceSlices of one node, and what claims have of its GPUs."""

    def __init__(self) -> None:
        self.slices: dict[str, OfferedDevices] = {}
        self.held: dict[str, tuple[HeldByClaim, ...]] = {}
        self.gpus: tuple[HeldGpu, ...] | None = None
        """The GPUs of the pool; None until somebody asks after a change."""


class ClusterClaims:
    """The ResourceSlices and allocated claims of a cluster; for one thread only."""

    def __init__(self, unknown: str = "") -> None:
        """Start empty; `unknown` says why the claims are not known."""
        self._pools: dict[str, _ClaimedNode] = {}
        self._pool_of_slice: dict[str, str] = {}
        self._pools_of_claim: dict[str, frozenset[str]] = {}
        self._claims: dict[str, PodClaim] = {}
        self._labels: dict[str, str] = {}
        self._drivers: Counter[str] = Counter()
        """The number of ResourceSlices with GPUs of each DRA driver."""
        self.unknown = unknown
        """Why the claims are not known, for people; empty where they are."""

    def put_slice(self, name: str, devices: OfferedDevices) -> None:
        """Take in a new or changed ResourceSlice by its name."""
        self.remove_slice(name)
        self._pool_of_slice[name] = devices.pool
        self._changed(devices.pool).slices[name] = devices
        if devices.devices:
            self._drivers[devices.driver] += 1
            if self._drivers[devices.driver] == 1:
                self._all_changed()

    def remove_slice(self, name: str) -> None:
        """Forget a ResourceSlice."""
        if (pool := self._pool_of_slice.pop(name, None)) is None:
            return
        gone = self._changed(pool).slices.pop(name)
        self._drop_if_empty(pool)
        if gone.devices:
            self._drivers[gone.driver] -= 1
            if not self._drivers[gone.driver]:
                del self._drivers[gone.driver]
                self._all_changed()

    def put_claim(self, uid: str, held: tuple[HeldByClaim, ...], claim: PodClaim | None = None) -> None:
        """Take in what a new or changed claim has, by the UID of the claim; `claim` says what the claim asks for."""
        self.remove_claim(uid)
        if claim is not None:
            self._labels[uid] = claim.label
            self._claims[claim.label] = claim
        pools = frozenset(each.device.pool for each in held)
        if pools:
            self._pools_of_claim[uid] = pools
        for pool in pools:
            self._changed(pool).held[uid] = tuple(each for each in held if each.device.pool == pool)

    def remove_claim(self, uid: str) -> None:
        """Forget a claim."""
        if (label := self._labels.pop(uid, None)) is not None:
            del self._claims[label]
        for pool in self._pools_of_claim.pop(uid, ()):
            del self._changed(pool).held[uid]
            self._drop_if_empty(pool)

    def on_node(self, name: str) -> Sequence[HeldGpu]:
        """Return the GPUs that a node gives by claim, with what claims have: the same object until that changes.

        Nothing where the claims are not known.
        """
        pool = self._pools.get(name)
        if pool is None or self.unknown:
            return ()
        if pool.gpus is None:
            slices = (each for _, each in sorted(pool.slices.items()))
            held = (each for several in pool.held.values() for each in several)
            pool.gpus = tuple(held_gpus(slices, held, self._drivers))
        return pool.gpus

    def claim(self, label: str) -> PodClaim | None:
        """Return a claim by NAMESPACE/NAME; None where there is no such claim."""
        return self._claims.get(label)

    @property
    def gpus(self) -> tuple[HeldGpu, ...]:
        """The GPUs that all nodes give by claim, in the order of the names of the nodes."""
        return tuple(gpu for pool in sorted(self._pools) for gpu in self.on_node(pool))

    def _changed(self, name: str) -> _ClaimedNode:
        pool = self._pools.setdefault(name, _ClaimedNode())
        pool.gpus = None
        return pool

    def _drop_if_empty(self, name: str) -> None:
        if not self._pools[name].slices and not self._pools[name].held:
            del self._pools[name]

    def _all_changed(self) -> None:
        """Look again at what claims have of every node: a DRA driver has become ours, or is not ours any more."""
        for pool in self._pools.values():
            pool.gpus = None
