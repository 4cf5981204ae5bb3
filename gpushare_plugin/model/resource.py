"""One advertised resource: its units, the rules a request must obey, and the answer a container gets.

What all ways of sharing have in common is here; what makes one way different (which units to prefer, what a set of
units means to a container) is a subclass in `sharing`.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from heapq import nsmallest
from operator import attrgetter
from types import MappingProxyType
from typing import Self

from gpushare_plugin.foundation.errors import PlacementError, RequestError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Grant
from gpushare_plugin.model.placement import Occupancy
from gpushare_plugin.model.unit import Unit

Shares = Mapping[Gpu, Sequence[Unit]]
"""GPUs and the units each is cut into."""

_IDS_IN_A_MESSAGE = 3


class Resource(ABC):
    """A resource as the kubelet sees it: a name and units, each on one GPU; never changed, only replaced.

    `shares` are the units of each GPU, `units_of` their number by the GPU's UUID. `unhealthy` holds the UUIDs of GPUs
    whose units must not be handed out. `retired` are units that belong to the resource no more but must stay listed
    while a pod may hold them; they are never handed out.
    """

    def __init__(self, name: str, shares: Shares) -> None:
        """Advertise the units of `shares` under the extended-resource `name`."""
        self.name = name
        self.unhealthy: frozenset[str] = frozenset()
        self.retired: Mapping[str, Unit] = {}
        self._share(shares)

    def _share(self, shares: Shares) -> None:
        self.shares = shares
        self.gpus: Mapping[str, Gpu] = {gpu.uuid: gpu for gpu in shares}
        self.units: Mapping[str, Unit] = {unit.id: unit for units in shares.values() for unit in units}
        self.units_of: Mapping[str, int] = {gpu.uuid: len(units) for gpu, units in shares.items()}

    def with_shares(self, shares: Shares, retired: Mapping[str, Unit] = MappingProxyType({})) -> Self:
        """Return the same resource with other units, those on their way out by ID."""
        other = copy(self)
        if shares is not self.shares:
            other._share(shares)  # noqa: SLF001 - its own kind
        other.retired = retired
        return other

    def with_unhealthy(self, unhealthy: frozenset[str]) -> Self:
        """Return the same resource with other GPUs unhealthy."""
        other = copy(self)
        other.unhealthy = unhealthy
        return other

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        """Choose `size` units out of `available`, `must_include` among them.

        Raises RequestError for input that makes no sense and PlacementError when no choice can work.
        """
        if self.retired:
            available = [id_ for id_ in available if id_ not in self.retired]
        free = self._known(available, "available")
        must = self._known(must_include, "must-include")
        if size < 1:
            raise RequestError(f"{self.name}: allocation size {size} found, at least 1 expected")
        if len(must) > size:
            raise RequestError(f"{self.name}: {len(must)} must-include units found for an allocation size of {size}")
        if missing := [id_ for id_ in must if id_ not in free]:
            raise RequestError(f"{self.name}: must-include units are not among the available: {_some(missing)}")
        healthy = [unit for unit in free.values() if unit.gpu not in self.unhealthy]
        return [unit.id for unit in self._choose(healthy, list(must.values()), size)]

    def allocate(self, ids: Collection[str]) -> Grant:
        """Return what a container that holds exactly `ids` gets.

        The kubelet may have ignored the preferred units, so everything is checked again. Raises RequestError for IDs
        that are not this resource's and PlacementError for a set that cannot work.
        """
        units = list(self._known(ids, "requested").values())
        if not units:
            raise RequestError(f"{self.name}: no device ID found in the request, at least one expected")
        if sick := sorted({unit.gpu for unit in units} & self.unhealthy):
            raise PlacementError(f"{self.name}: {self._names(sick)} unhealthy; its units cannot be allocated")
        return self._grant(units)

    @abstractmethod
    def _choose(self, available: Sequence[Unit], must: Sequence[Unit], size: int) -> list[Unit]:
        """Choose `size` of the healthy `available` units, `must` among them; raise PlacementError if impossible."""

    @abstractmethod
    def _grant(self, units: Sequence[Unit]) -> Grant:
        """Return the container's share for known, healthy, distinct `units`; raise PlacementError if they clash."""

    def occupancy(self, free: Mapping[str, Collection[Unit]]) -> dict[str, Occupancy]:
        """Return how full each GPU is when the units in `free`, by GPU, are, GPUs without a free one included."""
        return {
            uuid: Occupancy(gpu.index, len(free.get(uuid, ())), self.units_of[uuid]) for uuid, gpu in self.gpus.items()
        }

    def _known(self, ids: Collection[str], what: str) -> dict[str, Unit]:
        """Return the units of `ids`, which the kubelet sends by the thousand: they are gone over only once."""
        try:
            units = {id_: self.units[id_] for id_ in ids}
        except KeyError:
            if leaving := [id_ for id_ in ids if id_ in self.retired]:
                raise PlacementError(
                    f"{self.name}: {what} device IDs are on their way out, since the settings or the GPUs of this node "
                    f"changed: {_some(leaving)}; a new pod will get others"
                ) from None
            unknown = [id_ for id_ in ids if id_ not in self.units]
            raise RequestError(
                f"{self.name}: {what} device IDs are not units of this resource: {_some(unknown)}"
            ) from None
        if len(units) != len(ids):
            raise RequestError(f"{self.name}: {what} device IDs hold the same ID more than once")
        return units

    def _names(self, uuids: Iterable[str]) -> str:
        gpus = [self.gpus[uuid] for uuid in uuids]
        return ", ".join(f"GPU {gpu.label} ({gpu.uuid})" for gpu in gpus) + (" is" if len(gpus) == 1 else " are")


def by_gpu(units: Iterable[Unit]) -> Mapping[str, list[Unit]]:
    """Return the units of each GPU that has one among `units`, by its UUID."""
    groups: defaultdict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        groups[unit.gpu].append(unit)
    return groups


def without(units: Iterable[Unit], must: Collection[Unit]) -> Iterable[Unit]:
    """Return `units` but for those in `must`, which nearly always is empty."""
    if not must:
        return units
    taken = {unit.id for unit in must}
    return [unit for unit in units if unit.id not in taken]


def lowest(units: Iterable[Unit], must: Collection[Unit], count: int) -> list[Unit]:
    """Return `must` and the lowest-numbered other `units`, `count` in all."""
    return [*must, *nsmallest(count - len(must), without(units, must), key=attrgetter("number"))]


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(repr(id_[:64]) for id_ in ids[:_IDS_IN_A_MESSAGE])
    more = len(ids) - _IDS_IN_A_MESSAGE
    return f"{shown} and {more} more" if more > 0 else shown
