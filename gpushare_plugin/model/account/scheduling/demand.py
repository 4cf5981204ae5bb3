"""What pods take of a node: amounts of resources and host ports, counted as kube-scheduler counts them."""

from collections.abc import Collection, Hashable, Iterable, Mapping
from operator import attrgetter
from typing import TypeVar

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.account.request import MOST_RESOURCES, ContainerKind, beyond, effective_amounts, first_of

K = TypeVar("K", bound=Hashable)

PODS = "pods"
"""The resource that counts pods; each takes one."""

CPU = "cpu"
"""The resource that is counted in thousandths of a CPU; all others are counted in whole units, memory in bytes."""

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - not bound to, compared with
"""The host address that stands for all addresses of a node."""


class HostPort(Struct, frozen=True, gc=False):
    """A port that a container takes on an address of its node; `protocol` is TCP, UDP or SCTP."""

    port: int
    protocol: str = "TCP"
    address: str = ANY_ADDRESS

    def collides(self, other: "HostPort") -> bool:
        """Return whether one node cannot give both."""
        if (self.port, self.protocol) != (other.port, other.protocol):
            return False
        return self.address == other.address or ANY_ADDRESS in {self.address, other.address}


class Demand(Struct, frozen=True):
    """What one pod takes, or all pods of a node together; `+` and `-` keep such a sum as pods come and go.

    `resources` are thousandths of a CPU, bytes of memory, units of anything else, and the number of pods; `ports` says
    how many pods take each port. Neither holds zeros, so that equal demands are equal, and neither is ever changed.
    """

    resources: Mapping[str, int] = field(default_factory=dict)
    ports: Mapping[HostPort, int] = field(default_factory=dict)

    def __add__(self, other: "Demand") -> "Demand":
        """Return both together."""
        return Demand(_sum(self.resources, other.resources, 1), _sum(self.ports, other.ports, 1))

    def __sub__(self, other: "Demand") -> "Demand":
        """Return this without the other, which was added before."""
        return Demand(_sum(self.resources, other.resources, -1), _sum(self.ports, other.ports, -1))


NOTHING = Demand()
"""What the pods of an empty node take."""


MOST_PORTS = 1024
"""Host ports that are kept of a pod."""

_RESOURCES, _PORTS = "resources", "host ports"
_EVERY_NODE_HAS = (CPU, "memory", "ephemeral-storage", PODS)
_MOST_RESOURCES = MOST_RESOURCES + len(_EVERY_NODE_HAS)


def counted_resources(names: Collection[str], held: Collection[str]) -> frozenset[str] | None:
    """Return those of a pod's resources that are counted, None where all are; `held` come first."""
    if len(names) <= _MOST_RESOURCES:
        return None
    return frozenset(first_of(names, (held, _EVERY_NODE_HAS), _MOST_RESOURCES))


def within_bounds(demand: Demand, resources: int) -> tuple[Demand, str | None]:
    """Return what is kept of what a pod takes, and what is too much of it, None where all of it is kept.

    `resources` is how many it asks for; `demand` has those of `counted_resources`.
    """
    ports = demand.ports
    found, most = {_RESOURCES: resources, _PORTS: len(ports)}, {_RESOURCES: _MOST_RESOURCES, _PORTS: MOST_PORTS}
    problem = beyond(found, most)
    if len(ports) > MOST_PORTS:
        kept = sorted(ports, key=attrgetter("port"))[:MOST_PORTS]
        return Demand(demand.resources, dict.fromkeys(kept, 1)), problem
    return demand, problem


def pod_demand(
    containers: Iterable[tuple[ContainerKind, Mapping[str, int]]],
    overhead: Mapping[str, int],
    of_pod: Mapping[str, int],
    ports: Iterable[HostPort] = (),
) -> Demand:
    """Return what a pod takes of its node; all amounts are given in thousandths.

    `containers` stand in the order in which the kubelet starts them, with what each requests. What the pod as a whole
    requests (`of_pod`) counts instead of the sum of its containers, resource by resource. The overhead of its
    RuntimeClass is added. Amounts other than CPU are rounded up to whole units at the end.
    """
    total = effective_amounts((kind, amounts.items()) for kind, amounts in containers)
    total = _sum(total | dict(of_pod), overhead, 1)
    resources = {name: counted(name, amount) for name, amount in total.items() if amount > 0}
    return Demand(resources | {PODS: 1}, dict.fromkeys(ports, 1))


def taken_ports(asked: Mapping[HostPort, int], used: Mapping[HostPort, int]) -> list[int]:
    """Return the ports that one node cannot give because others have them, in ascending order."""
    if not asked or not used:
        return []
    there: dict[tuple[int, str], list[HostPort]] = {}
    for port in used:
        there.setdefault((port.port, port.protocol), []).append(port)
    return sorted({port.port for port in asked if any(map(port.collides, there.get((port.port, port.protocol), ())))})


def counted(resource: str, thousandths: int) -> int:
    """Return an amount as it is counted: CPU in thousandths, all else in whole units, rounded up."""
    return thousandths if resource == CPU else -(-thousandths // 1000)


def resized(
    asked: Mapping[str, int], allocated: Mapping[str, int], used: Mapping[str, int], *, infeasible: bool
) -> dict[str, int]:
    """Return what a container counts for while it is resized in place: the most of what was, is and will be.

    `asked` is what it should have; `allocated` is what the node has reserved for it, `used` what it runs with. A
    resize that the node finds `infeasible` will not happen.
    """
    lists = [allocated, used] if infeasible else [asked, allocated, used]
    return {name: max(each.get(name, 0) for each in lists) for name in {name for each in lists for name in each}}


def _sum(some: Mapping[K, int], more: Mapping[K, int], sign: int) -> dict[K, int]:
    """Return the amounts of both added up, or those of `more` taken away; zeros are left out."""
    total = dict(some)
    for name, amount in more.items():
        total[name] = total.get(name, 0) + sign * amount
        if not total[name]:
            del total[name]
    return total
