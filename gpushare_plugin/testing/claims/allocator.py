"""Finds devices for claims: the first that fit, going back where a later request finds none."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from uuid import uuid4

from gpushare_plugin.ledger.quantity import amount
from gpushare_plugin.testing.claims import expressions
from gpushare_plugin.testing.claims.capacity import Consumed, canonical, consumption
from gpushare_plugin.testing.claims.errors import AllocationError
from gpushare_plugin.testing.claims.pools import DeviceId, Object, OfferedDevice, offered

Selects = Callable[[str, str, Object], bool]
"""Whether an expression selects a device of a driver."""


@dataclass(slots=True)
class ClaimedDevices:
    """What claims have: whole devices, and of shared ones how much of each capacity."""

    whole: set[DeviceId] = field(default_factory=set)
    consumed: dict[DeviceId, Consumed] = field(default_factory=dict)

    @classmethod
    def of(cls, claims: Iterable[Object]) -> "ClaimedDevices":
        """Add up the allocations of claims; access for admins does not count."""
        usage = cls()
        for claim in claims:
            allocation = (claim.get("status") or {}).get("allocation") or {}
            for result in (allocation.get("devices") or {}).get("results") or ():
                key = result["driver"], result["pool"], result["device"]
                if result.get("adminAccess"):
                    continue
                if "shareID" in result:
                    usage.add(key, {name: amount(each) for name, each in result.get("consumedCapacity", {}).items()})
                else:
                    usage.whole.add(key)
        return usage

    def add(self, key: DeviceId, share: Consumed) -> None:
        """Count a share."""
        there = self.consumed.setdefault(key, {})
        for name, each in share.items():
            there[name] = there.get(name, Fraction(0)) + each

    def remove(self, key: DeviceId, share: Consumed) -> None:
        """Count a share no more."""
        self.add(key, {name: -each for name, each in share.items()})

    def fits(self, found: OfferedDevice, share: Consumed) -> bool:
        """Return whether a device has room for a share."""
        there = self.consumed.get(found.id, {}) if found.shared else {}
        capacities = found.device.get("capacity") or {}
        return all(there.get(name, 0) + each <= amount(capacities[name]["value"]) for name, each in share.items())


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """A device for a request, by the full name of the request, and what is consumed of a shared one."""

    request: str
    part: Object
    found: OfferedDevice
    share: Consumed


class ClaimAllocator:
    """Allocates one claim on one node, as the structured allocator does for its first fit.

    `classes` are DeviceClasses by name; `selects` evaluates CEL, by default the few forms in `expressions`.

    From Kubernetes 1.36 on, each further device of a request comes after the device before (`startLocation` in
    dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go, kubernetes#133678). Kubernetes
    1.34 and 1.35 begin with the first device again (`allocateOne` in experimental/allocator_experimental.go), so one
    request can have several shares of one device.
    """

    def __init__(  # noqa: PLR0913 - what kube-scheduler knows
        self,
        slices: Iterable[Object],
        allocated: Iterable[Object],
        classes: Mapping[str, Object],
        node: str,
        selects: Selects = expressions.matches,
        *,
        begins_again: bool = False,
    ) -> None:
        """Take ResourceSlices, and the claims whose allocations count; `begins_again` is as before Kubernetes 1.36."""
        self._offered = offered(slices, node)
        self._usage = ClaimedDevices.of(allocated)
        self._classes = classes
        self._node = node
        self._selects = selects
        self._begins_again = begins_again

    def allocate(self, claim: Object) -> Object:
        """Return `status.allocation` for a claim; raises AllocationError and SelectorError."""
        devices = claim["spec"].get("devices") or {}
        chosen: list[ChosenDevice] = []
        if not self._fill(devices.get("requests") or [], devices.get("constraints") or [], chosen):
            raise AllocationError("cannot allocate all claims")
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self._node]}]}]
        results = {"results": [_result(each) for each in chosen]}
        config = {"config": found} if (found := self._config(devices.get("config") or [], chosen)) else {}
        return {"devices": results | config, "nodeSelector": {"nodeSelectorTerms": terms}}

    def _fill(self, requests: Sequence[Object], constraints: Sequence[Object], chosen: list[ChosenDevice]) -> bool:
        """Choose for the first request, in the order of its alternatives, and then for the others."""
        if not requests:
            return True
        for name, part in _alternatives(requests[0]):
            if part.get("allocationMode", "ExactCount") != "ExactCount":
                raise AllocationError("allocationMode All is not served by the allocator of the test kit")

            def rest() -> bool:
                return self._fill(requests[1:], constraints, chosen)

            if self._take(name, part, part.get("count") or 1, 0, constraints, chosen, rest):
                return True
        return False

    def _take(  # noqa: PLR0913, PLR0917 - the state of a search
        self,
        name: str,
        part: Object,
        count: int,
        first: int,
        constraints: Sequence[Object],
        chosen: list[ChosenDevice],
        rest: Callable[[], bool],
    ) -> bool:
        """Choose `count` devices from position `first` on, and then what comes after them."""
        if count == 0:
            return rest()
        for position in range(first, len(self._offered)):
            choice = self._candidate(name, part, self._offered[position], chosen)
            if choice is None or not _together([*chosen, choice], constraints):
                continue
            self._hold(choice, chosen)
            following = 0 if self._begins_again else position + 1
            if self._take(name, part, count - 1, following, constraints, chosen, rest):
                return True
            self._release(chosen)
        return False

    def _candidate(
        self, name: str, part: Object, found: OfferedDevice, chosen: Sequence[ChosenDevice]
    ) -> ChosenDevice | None:
        """Return the choice of a device, None where it does not fit."""
        share = consumption((part.get("capacity") or {}).get("requests") or {}, found.device.get("capacity") or {})
        if share is None or not self._selected(part, found):
            return None
        admin = part.get("adminAccess") is True
        if admin and not found.shared and any(each.found.id == found.id for each in chosen):
            return None
        if (not admin and found.id in self._usage.whole) or not self._usage.fits(found, share):
            return None
        return ChosenDevice(name, part, found, share) if _tolerated(part, found) else None

    def _selected(self, part: Object, found: OfferedDevice) -> bool:
        class_of = self._classes.get(part["deviceClassName"])
        if class_of is None:
            raise AllocationError(f"device class {part['deviceClassName']} does not exist")
        selectors = [*(class_of["spec"].get("selectors") or ()), *(part.get("selectors") or ())]
        return all(self._selects(each["cel"]["expression"], found.id[0], found.device) for each in selectors)

    def _hold(self, choice: ChosenDevice, chosen: list[ChosenDevice]) -> None:
        chosen.append(choice)
        if choice.found.shared:
            self._usage.add(choice.found.id, choice.share)
        elif not choice.part.get("adminAccess"):
            self._usage.whole.add(choice.found.id)

    def _release(self, chosen: list[ChosenDevice]) -> None:
        choice = chosen.pop()
        if choice.found.shared:
            self._usage.remove(choice.found.id, choice.share)
        elif not choice.part.get("adminAccess"):
            self._usage.whole.discard(choice.found.id)

    def _config(self, of_claim: Iterable[Object], chosen: Sequence[ChosenDevice]) -> list[Object]:
        """Return configs of classes, once each, before those of the claim."""
        found: list[Object] = []
        for name in dict.fromkeys(each.part["deviceClassName"] for each in chosen):
            requests = list(dict.fromkeys(each.request for each in chosen if each.part["deviceClassName"] == name))
            configs = self._classes[name]["spec"].get("config") or ()
            found += [{"source": "FromClass", "requests": requests, **each} for each in configs]
        return [*found, *({"source": "FromClaim", **each} for each in of_claim)]


def _alternatives(request: Object) -> Iterator[tuple[str, Object]]:
    if exactly := request.get("exactly"):
        yield request["name"], exactly
    for each in request.get("firstAvailable") or ():
        yield f"{request['name']}/{each['name']}", each


def _together(chosen: Sequence[ChosenDevice], constraints: Iterable[Object]) -> bool:
    """Return whether choices meet `matchAttribute` and `distinctAttribute`; each choice must have the attribute."""
    for constraint in constraints:
        requests = constraint.get("requests") or ()
        held = [each for each in chosen if not requests or not {each.request, _main(each)}.isdisjoint(requests)]
        attribute = constraint.get("matchAttribute") or constraint["distinctAttribute"]
        values = [(_main(each), _attribute(each.found, attribute)) for each in held]
        if any(value is None for _, value in values):
            return False
        if not (_same(values) if "matchAttribute" in constraint else _distinct(values)):
            return False
    return True


def _main(choice: ChosenDevice) -> str:
    """Return the name of the request without the alternative."""
    return choice.request.partition("/")[0]


def _same(values: Sequence[tuple[str, object]]) -> bool:
    return len({value for _, value in values}) <= 1


def _distinct(values: Iterable[tuple[str, object]]) -> bool:
    """Return whether values differ, as Kubernetes until 1.36 sees that: of a request, only the latest value counts.

    Source: `distinctAttributeConstraint` in dynamic-resource-allocation/structured/internal/incubating/constraint.go;
    mended by kubernetes#140600.
    """
    latest: dict[str, object] = {}
    for request, value in values:
        if value in latest.values():
            return False
        latest[request] = value
    return True


def _attribute(found: OfferedDevice, name: str) -> object:
    known = found.device.get("attributes") or {}
    domain, _, identifier = name.partition("/")
    value = known.get(name) or (known.get(identifier) if domain == found.id[0] else None)
    return next(iter(value.values())) if value else None


def _tolerated(part: Object, found: OfferedDevice) -> bool:
    tolerations = part.get("tolerations") or ()
    return all(
        taint["effect"] == "None"
        or any(
            each.get("key") in {None, taint["key"]}
            and each.get("effect") in {None, taint["effect"]}
            and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
            for each in tolerations
        )
        for taint in found.device.get("taints") or ()
    )


def _result(choice: ChosenDevice) -> Object:
    driver, pool, device = choice.found.id
    result: Object = {"request": choice.request, "driver": driver, "pool": pool, "device": device}
    if choice.part.get("adminAccess"):
        result["adminAccess"] = True
    if choice.found.shared:
        result["shareID"] = str(uuid4())
        result["consumedCapacity"] = {name: canonical(each) for name, each in choice.share.items()}
    return result
