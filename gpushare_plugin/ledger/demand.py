"""The demand of pods on a node: amounts of resources and host ports, counted by kube-scheduler's rules."""

from collections.abc import Collection, Hashable, Iterable, Mapping
from operator import attrgetter
from typing import TypeVar

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.ledger.request import MOST_RESOURCES, ContainerKind, beyond, effective_amounts, first_of

K = TypeVar("K", bound=Hashable)

PODS = "pods"
"""The resource for the number of pods; each pod takes one."""

CPU = "cpu"
"""The resource counted in thousandths of a CPU; every other resource is counted in whole units, memory in bytes."""

MEMORY = "memory"
"""The resource for the memory of a node, in bytes."""

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - only compared with, never bound to
"""The host address that stands for all addresses of a node."""


class HostPort(Struct, frozen=True, gc=False):
    """A port taken by a container on an address of its node."""

    port: int
    """The number of the port."""
    protocol: str = "TCP"
    """The protocol: TCP, UDP or SCTP."""
    address: str = ANY_ADDRESS
    """The address of the node."""

    def collides(self, other: "HostPort") -> bool:
        """Return whether a node cannot give both ports."""
        if (self.port, self.protocol) != (other.port, other.protocol):
            return False
        return self.address == other.address or ANY_ADDRESS in {self.address, other.address}


class Demand(Struct, frozen=True):
    """The demand of a pod, or the sum of all pods of a node; `+` and `-` update the sum when pods come and go.

    The mappings never change, and have no zeros: demands with the same amounts are equal.
    """

    resources: Mapping[str, int] = field(default_factory=dict)
    """The amount of each resource: thousandths of a CPU, bytes of memory, the number of pods, or units."""
    ports: Mapping[HostPort, int] = field(default_factory=dict)
    """The number of pods by host port."""

    def __add__(self, other: "Demand") -> "Demand":
        """Return the sum of both demands."""
        return Demand(_sum(self.resources, other.resources, 1), _sum(self.ports, other.ports, 1))

    def __sub__(self, other: "Demand") -> "Demand":
        """Return the sum without `other`, which was added before."""
        return Demand(_sum(self.resources, other.resources, -1), _sum(self.ports, other.ports, -1))


NOTHING = Demand()
"""The demand of the pods of an empty node."""


MOST_PORTS = 1024
"""The most host ports kept of a pod."""

_RESOURCES, _PORTS = "resources", "host ports"
_EVERY_NODE_HAS = (CPU, MEMORY, "ephemeral-storage", PODS)
_MOST_RESOURCES = MOST_RESOURCES + len(_EVERY_NODE_HAS)


def counted_resources(names: Collection[str], held: Collection[str]) -> frozenset[str] | None:
    """Return the counted resources of a pod, first the `held` resources; None if all resources are counted."""
    if len(names) <= _MOST_RESOURCES:
        return None
    return frozenset(first_of(names, (held, _EVERY_NODE_HAS), _MOST_RESOURCES))


def within_bounds(demand: Demand, resources: int) -> tuple[Demand, str | None]:
    """Return the kept demand of a pod, and which counts are too large to keep; None if everything is kept.

    `resources` is the number of requested resources; `demand` has the resources of `counted_resources` only.
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
    """Return the demand of a pod; all arguments have amounts in thousandths.

    `containers` has the requests of the containers, in the order in which the kubelet starts the containers. The
    requests of the pod as a whole (`of_pod`) replace the sum of its containers, resource by resource. The `overhead` of
    the RuntimeClass is added. Amounts except CPU are rounded up to whole units at the end.
    """
    total = effective_amounts((kind, amounts.items()) for kind, amounts in containers)
    total = _sum(total | dict(of_pod), overhead, 1)
    resources = {name: counted(name, amount) for name, amount in total.items() if amount > 0}
    return Demand(resources | {PODS: 1}, dict.fromkeys(ports, 1))


def taken_ports(asked: Mapping[HostPort, int], used: Mapping[HostPort, int]) -> list[int]:
    """Return the asked ports that are taken by used ports, in ascending order."""
    if not asked or not used:
        return []
    there: dict[tuple[int, str], list[HostPort]] = {}
    for port in used:
        there.setdefault((port.port, port.protocol), []).append(port)
    return sorted({port.port for port in asked if any(map(port.collides, there.get((port.port, port.protocol), ())))})


def counted(resource: str, thousandths: int) -> int:
    """Return an amount in counted units: CPU in thousandths, everything else in whole units, rounded up."""
    return thousandths if resource == CPU else -(-thousandths // 1000)


def resized(
    asked: Mapping[str, int], allocated: Mapping[str, int], used: Mapping[str, int], *, infeasible: bool
) -> dict[str, int]:
    """Return the counted amounts of a container during a resize in place: the largest amount of each resource.

    `asked` are the amounts in the spec, `allocated` the amounts reserved by the node, and `used` the amounts in effect.
    A resize found `infeasible` by the node will not happen, and `asked` does not count.
    """
    lists = [allocated, used] if infeasible else [asked, allocated, used]
    return {name: max(each.get(name, 0) for each in lists) for name in {name for each in lists for name in each}}


def _sum(some: Mapping[K, int], more: Mapping[K, int], sign: int) -> dict[K, int]:
    """Return `some` with the amounts of `more` added (`sign` 1) or taken away (-1), without zeros."""
    total = dict(some)
    for name, amount in more.items():
        total[name] = total.get(name, 0) + sign * amount
        if not total[name]:
            del total[name]
    return total
