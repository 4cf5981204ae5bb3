"""What free pieces of GPUs are worth to this node, learned from its containers, for the policy `packing`."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TypeGuard

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.chooser import Chooser, OneGpu
from gpushare_plugin.core.holding import Holding
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.packing.pod_kind import PodKind, percent_of_units
from gpushare_plugin.packing.seen import SeenPods
from gpushare_plugin.packing.values import Values, part_values

FIRST_LESSON = 10
"""After how many containers with units of a resource the node learns first: a node sees fewer than a cluster."""


class NodePacking:
    """Learns from the containers of this node how GPUs are divided; each resource has values of its own."""

    def __init__(self) -> None:
        """Start without any container: a free piece is worth its size."""
        self._seen: dict[str, SeenPods] = {}
        self._values: dict[str, Values] = {}
        self._due: dict[str, SeenPods] = {}
        self._lesson = asyncio.Event()

    def resume(self, resources: Iterable[Resource], held: Iterable[Holding]) -> None:
        """Take note of the containers from before the start of this process."""
        packed = {resource.name: resource for resource in resources}
        # An init container and the containers after it hold the same units.
        for name, ids in dict.fromkeys((each.resource, each.ids) for each in held if each.container):
            if name in packed:
                self.see(packed[name], ids)

    def see(self, resource: Resource, ids: Collection[str]) -> None:
        """Take note of the units that a container got; units that the resource no longer offers are left out."""
        if not _packs(resource.chooser) or not all(id_ in resource.units for id_ in ids):
            return
        seen = self._seen.setdefault(resource.name, SeenPods(first_lesson=FIRST_LESSON))
        for uuid, units in resource.gpus_of(ids).items():
            if seen.see(_share(units, resource.units_of[uuid])):
                self._due[resource.name] = seen
                self._lesson.set()

    async def learn(self, apply: Callable[[], None]) -> None:
        """Learn whenever a lesson is due, in a thread, and then call `apply`; until cancelled."""
        while True:
            await self._lesson.wait()
            self._lesson.clear()
            due, self._due = self._due, {}
            for name, seen in due.items():
                self._values[name] = await asyncio.to_thread(part_values, seen.lesson().shares)
            apply()

    def following(self, resource: Resource) -> Resource:
        """Return a resource whose chooser goes by what was learned."""
        values, chooser = self._values.get(resource.name), resource.chooser
        if values is None or not _packs(chooser):
            return resource
        return replace(resource, chooser=replace(chooser, values=values))


def _packs(chooser: Chooser) -> TypeGuard[OneGpu]:
    return isinstance(chooser, OneGpu) and chooser.policy == "packing"


def _share(size: int, units: int) -> PodKind:
    """Return a container with `size` units of one GPU as a pod: nothing else of the container matters to the node."""
    return PodKind(cpu=0, memory=0, gpus=1, percent=percent_of_units(size, units))
