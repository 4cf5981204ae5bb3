"""A node whose GPUs are given by claim: its devices as the API has them, and claims that kube-scheduler allocates."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.claims.accounts import check_room
from gpushare_plugin.claims.claim import AllocatedClaim, AllocatedDevice
from gpushare_plugin.claims.device import Attribute, Capacity, Device, SemanticVersion
from gpushare_plugin.claims.devices import NodeDevices, by_device, node_devices
from gpushare_plugin.claims.grants import grants, held
from gpushare_plugin.core.claimed_gpu import ClaimedGpu
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.grant import Grant
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedClaim
from gpushare_plugin.ledger.quantity import amount
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.testing.claims import ClaimAllocator
from gpushare_plugin.testing.cluster.dra.slices import problems
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.settings import planned

NODE, DRIVER, CLASS = "node", "gpu.gpushare.io", "gpu"
GIB = 1024 * MIB
FOUR = a_node(*[40960] * 4)

Object = dict[str, Any]


class ClaimNode:
    """A node that gives all or some GPUs by claim, and its claims in the order in which they are allocated."""

    def __init__(self, inventory: Inventory = FOUR, *, begins_again: bool = False, **sections: object) -> None:
        """Plan the GPUs of a node by a config with these sections, and with `dra`.

        `begins_again` is as for ClaimAllocator.
        """
        self.inventory = inventory
        self.plan: Plan = planned(inventory, **{"dra": {}, **sections})
        assert self.plan.problems == ()
        self.claims: dict[str, Object] = {}
        self._numbers = count(1)
        self._begins_again = begins_again

    @property
    def by_claim(self) -> Mapping[str, ClaimedGpu]:
        """The GPUs that are given by claim."""
        return self.plan.by_claim

    @property
    def listed(self) -> NodeDevices:
        """The devices in the order of what is allocated now."""
        allocated = [each for claim in self.claims.values() for each in self.allocated(claim).devices]
        return node_devices(self.by_claim, self.inventory, allocated)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices."""
        return self.listed.devices

    def device(self, number: int = 0) -> Device:
        """Return the device of the GPU with this index."""
        return next(each for each in self.devices if each.gpu == a_gpu(number).uuid)

    @property
    def resource_slice(self) -> Object:
        """The devices as a ResourceSlice."""
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        devices = [api_device(each) for each in self.devices]
        return {
            "metadata": {"name": "a"},
            "spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices},
        }

    @property
    def objections(self) -> list[str]:
        """What the API server has against the ResourceSlice."""
        return list(problems(self.resource_slice, None))

    def allocate(self, *requests: Object | str, name: str = "", constraints: Sequence[Object] = ()) -> AllocatedClaim:
        """Allocate a claim as kube-scheduler does; a text is a request for this much memory. Raises AllocationError."""
        number = next(self._numbers)
        name = name or f"claim-{number}"
        asked = [_request(place, each) for place, each in enumerate(requests)]
        spec = {"devices": {"requests": asked, "constraints": list(constraints)}}
        claim: Object = {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{number}"}, "spec": spec}
        classes: dict[str, Object] = {CLASS: {"spec": {}}}
        allocator = ClaimAllocator(
            [self.resource_slice],
            self.claims.values(),
            classes,
            NODE,
            lambda *_: True,
            begins_again=self._begins_again,
        )
        self.claims[name] = {**claim, "status": {"allocation": allocator.allocate(claim)}}
        return self.allocated(self.claims[name])

    def allocated(self, claim: Object) -> AllocatedClaim:
        """Return a claim as the node reads the claim."""
        meta = claim["metadata"]
        results = claim["status"]["allocation"]["devices"]["results"]
        return AllocatedClaim(ClaimId(meta["namespace"], meta["name"], meta["uid"]), tuple(map(_allocated, results)))

    def prepared(self, claim: AllocatedClaim) -> PreparedClaim:
        """Return what a claim holds."""
        return PreparedClaim(claim.id, held(claim, self._gpus))

    def grants(self, claim: AllocatedClaim) -> Mapping[str, Grant]:
        """Return what each request of a claim gets."""
        return grants(claim, self._gpus)

    def check(self, claim: PreparedClaim, others: Collection[PreparedClaim]) -> None:
        """Check that a claim fits beside others."""
        check_room(claim, others, self.by_claim)

    @cached_property
    def _gpus(self) -> Mapping[str, ClaimedGpu]:
        return by_device(self.by_claim)


def request(name: str = "gpu", **exactly: Any) -> Object:
    """Return a request of a claim; the names of capacities are keys, other fields of `exactly` stay."""
    capacities = {key: exactly.pop(key) for key in ("memory", "compute", "shares") if key in exactly}
    asked = {"capacity": {"requests": capacities}} if capacities else {}
    return {"name": name, "exactly": {"deviceClassName": CLASS, **asked, **exactly}}


def share(uid: str = "uid", name: str = "claim", **fields: Any) -> AllocatedClaim:
    """Return a claim with one share of the first GPU of four, with `fields` of the AllocatedDevice."""
    given = {"request": "gpu", "pool": NODE, "device": a_gpu(0).uuid.lower(), "share_id": "share", **fields}
    return AllocatedClaim(ClaimId("default", name, uid), (AllocatedDevice(**given),))


def _request(place: int, asked: Object | str) -> Object:
    return request(f"gpu-{place}", memory=asked) if isinstance(asked, str) else asked


def _allocated(result: Object) -> AllocatedDevice:
    consumed = {name: int(amount(each)) for name, each in result.get("consumedCapacity", {}).items()}
    return AllocatedDevice(
        result["request"],
        result["pool"],
        result["device"],
        result.get("shareID"),
        consumed,
        admin_access=result.get("adminAccess", False),
    )


def api_device(device: Device) -> Object:
    """Return a device as the API has devices, with quantities in bytes."""
    found: Object = {
        "name": device.name,
        "attributes": {name: _value(each) for name, each in device.attributes.items()},
        "capacity": {name: _capacity(each) for name, each in device.capacities.items()},
    }
    return found | ({"allowMultipleAllocations": True} if device.shared else {})


def _value(value: Attribute) -> Object:
    return {"version": value.text} if isinstance(value, SemanticVersion) else {"string": value}


def _capacity(capacity: Capacity) -> Object:
    found: Object = {"value": str(capacity.amount)}
    if capacity.default is None:
        return found
    policy: Object = {"default": str(capacity.default)}
    if capacity.values:
        policy["validValues"] = [str(each) for each in capacity.values]
    elif capacity.step is not None:
        policy["validRange"] = {"min": str(capacity.least), "step": str(capacity.step)}
    return {**found, "requestPolicy": policy}
