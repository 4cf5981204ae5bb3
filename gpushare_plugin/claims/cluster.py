"""The claims of a cluster: the GPUs that nodes give by claim, and what claims have of each GPU."""

from collections.abc import Iterable, Iterator, Mapping

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.claims.claim import AllocatedDevice
from gpushare_plugin.claims.device import Device
from gpushare_plugin.claims.status import DeviceStatus
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser

Place = tuple[str, str, str]
"""A device: the names of the DRA driver, of the pool, which is the name of the node, and of the device."""


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


def held_gpus(slices: Iterable[OfferedDevices], held: Iterable[HeldByClaim]) -> Iterator[HeldGpu]:
    """Yield each GPU that gpushare gives by claim, in the order of the `slices`, with what claims have.

    Then come devices that claims have and no ResourceSlice has any more. Devices of other DRA drivers are left out.
    """
    slices = tuple(slices)
    by_place: dict[Place, list[HeldByClaim]] = {}
    for each in held:
        by_place.setdefault(each.place, []).append(each)
    for gpu in _newest(slices):
        yield HeldGpu(gpu, tuple(by_place.pop(gpu.place, ())))
    ours = {each.driver for each in slices if each.devices}
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


class ClusterClaims:
    """The ResourceSlices and allocated claims of a cluster; for one thread only."""

    def __init__(self, unknown: str = "") -> None:
        """Start empty; `unknown` says why the claims are not known."""
        self._slices: dict[str, OfferedDevices] = {}
        self._held: dict[str, tuple[HeldByClaim, ...]] = {}
        self.unknown = unknown
        """Why the claims are not known, for people; empty where they are."""

    def put_slice(self, name: str, devices: OfferedDevices) -> None:
        """Take in a new or changed ResourceSlice by its name."""
        self._slices[name] = devices

    def remove_slice(self, name: str) -> None:
        """Forget a ResourceSlice."""
        self._slices.pop(name, None)

    def put_claim(self, uid: str, held: tuple[HeldByClaim, ...]) -> None:
        """Take in what a new or changed claim has, by the UID of the claim."""
        self.remove_claim(uid)
        if held:
            self._held[uid] = held

    def remove_claim(self, uid: str) -> None:
        """Forget a claim."""
        self._held.pop(uid, None)

    @property
    def gpus(self) -> Iterator[HeldGpu]:
        """Each GPU given by claim, with what claims have; nothing where the claims are not known."""
        if not self.unknown:
            slices = (each for _, each in sorted(self._slices.items()))
            yield from held_gpus(slices, (each for held in self._held.values() for each in held))

    def by_node(self) -> Mapping[str, list[HeldGpu]]:
        """Return the GPUs given by claim, with what claims have, by the name of the node."""
        found: dict[str, list[HeldGpu]] = {}
        for each in self.gpus:
            found.setdefault(each.gpu.pool, []).append(each)
        return found
