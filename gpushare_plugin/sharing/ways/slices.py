"""Slices of given sizes: a GPU is cut into a few slices, and a container gets one slice.

The config sets the slices, or, on a partitioned node, a cut that follows the wanted slices (see `sharing.cut`).

The resource names come from nos. Sizes are parts of the nominal size of a GPU, the usable memory rounded up to whole
GiB: containers can use a little less than 40 GiB of a 40 GB card, and two slices of 20gb must fit on the card.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from gpushare_plugin.base.errors import Path
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.findings import GPUS_TO_NAME, Findings
from gpushare_plugin.config.schema.sections import AllDevices, Compute, SizedDevices
from gpushare_plugin.config.unreported_memory import NO_SIZE, remedy, with_memory, without_memory
from gpushare_plugin.core.chooser import OneSlice, refuse_several_slices
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation, Grant
from gpushare_plugin.core.resource import Resource, Units
from gpushare_plugin.core.unit import Form, Unit
from gpushare_plugin.sharing.isolation.layer import Layers, Limits, isolate
from gpushare_plugin.sharing.isolation.mps import room_of, why_not
from gpushare_plugin.sharing.isolation.table import isolations_under_mps
from gpushare_plugin.sharing.isolation.variables import ShareVariables
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.sharing.ways.way import Entry, NodeFacts, SliceNumbers, by_place
from gpushare_plugin.slices.slice import Slice


class SlicesWay:
    """The way of sharing for the entries of `sharing.mps.sizes`, or for all GPUs of a node partitioned under MPS."""

    section: Path = ("sharing", "mps", "sizes")

    def __init__(self, node: NodeFacts, findings: Findings) -> None:
        """Make the entries, which cut cards only."""
        self._node = node
        self._findings = findings
        mps = node.config.sharing.mps
        self._cuts = [self._configured(index, settings) for index, settings in enumerate(mps.sizes if mps else ())]
        if node.effective.partitioning == "mps":
            self._cuts.append(self._partitioned())
        self.entries = [each.entry for each in self._cuts]

    def _configured(self, index: int, settings: SizedDevices) -> "_CutEntry":
        slices = {each.size: range(each.count) for each in settings.slices}
        entry = Entry(
            path=(*self.section, index),
            name=", ".join(each.size.resource for each in settings.slices),
            devices=settings.devices,
            candidates=with_memory(self._node.inventory.cards),
            unsized=without_memory(self._node.inventory.cards),
            isolations=isolations_under_mps(
                settings.isolation,
                self._node.config,
                Limits(_compute(settings), burst=settings.burst),
                self._node.means,
            ),
            containers=lambda _gpu: sum(each.count for each in settings.slices),
            key="slices",
        )
        return _CutEntry(entry, lambda _gpu: slices, settings)

    def _partitioned(self) -> "_CutEntry":
        cards = self._node.inventory.cards
        for gpu in cards:
            if reason := why_not(gpu):
                advice = f"; {remedy(gpu)}" if reason == NO_SIZE else ""
                self._findings.notice(f"{gpu.description} is not partitioned: it {reason}{advice}")
        entry = Entry(
            path=self.section,
            name="partitioned",
            devices=AllDevices(),
            candidates=tuple(gpu for gpu in cards if not why_not(gpu)),
            isolations=isolations_under_mps(None, self._node.config, Limits(), self._node.means),
            containers=lambda gpu: sum(map(len, self._node.cut.get(gpu.uuid, {}).values())),
        )
        return _CutEntry(entry, lambda gpu: self._node.cut.get(gpu.uuid, {}))

    def resources(self, unclaimed: Mapping[Gpu, str]) -> list[Resource]:  # noqa: ARG002 - slices are made by entries only
        """Return one resource for each size, with the slices of all entries; one GPU can be in several resources."""
        by_size: dict[Slice, dict[Gpu, Sequence[Unit]]] = {}
        layers: dict[str, Layers] = {}
        for entry, slices, settings in self._cuts:
            if settings is not None:
                self._refuse_too_much(entry, settings)
            for gpu in entry.gpus:
                layers[gpu.uuid] = (ShareVariables(), *entry.isolation.layers)
                for size, numbers in slices(gpu).items():
                    units = slice_units(gpu, self._node.short_uuids[gpu.uuid], size, numbers)
                    by_size.setdefault(size, {})[gpu] = units
        return [
            Resource(
                size.resource,
                Units({gpu: by_size[size][gpu] for gpu in by_place(by_size[size])}),
                OneSlice(),
                SliceGranter(size, self._node.injection, layers),
            )
            for size in sorted(by_size, key=attrgetter("gib"))
        ]

    def _refuse_too_much(self, entry: Entry, settings: SizedDevices) -> None:
        total = sum(each.size.gib * each.count for each in settings.slices)
        too_small = [
            f"{gpu.description} has {nominal}gb, its {gpu.memory_mib} MiB rounded up to GiB"
            for gpu in entry.gpus
            if (nominal := room_of(gpu).parts) < total
        ]
        if too_small:
            asked = " + ".join(f"{each.count} x {each.size.name}" for each in settings.slices)
            gpus = some_of(too_small, GPUS_TO_NAME)
            self._findings.problem(
                (*entry.path, "slices"), f"{asked} = {total}gb found, but {gpus}; take smaller or fewer slices"
            )


class _CutEntry(NamedTuple):
    """An entry with the cut of its GPUs."""

    entry: Entry
    """The entry."""
    slices: Callable[[Gpu], SliceNumbers]
    """Returns the slices of a GPU."""
    settings: SizedDevices | None = None
    """The settings of the entry in the config, None if the cut follows the wanted slices of a partitioned node."""


class SliceGranter(Struct, frozen=True):
    """Gives a container one slice."""

    size: Slice
    """The size of the slice."""
    injection: Injection
    """The access to GPUs."""
    layers: Mapping[str, Layers]
    """The layers that keep a container within its slice, by GPU UUID."""

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPU and the limits of the slice; raises PlacementError for several slices."""
        refuse_several_slices(allocation.resource, len(allocation.ids))
        (allocated,) = allocation.gpus
        gpu = allocated.gpu
        share = replace(allocated, units=self.size.gib, of=room_of(gpu).parts)
        return isolate(self.injection.grant([gpu]), replace(allocation, gpus=(share,)), self.layers[gpu.uuid])


def _compute(settings: SizedDevices) -> Compute:
    if settings.compute == "equal":
        return 100 // sum(each.count for each in settings.slices) or 1
    return settings.compute


def slice_units(gpu: Gpu, short_uuid: str, size: Slice, numbers: Sequence[int]) -> list[Unit]:
    """Cut slices of `size` from `gpu`; a slice gets usable memory in proportion to its size, rounded down to MiB."""
    mib = gpu.memory_mib * size.gib // room_of(gpu).parts
    return Form.cut(short_uuid, size).units(gpu.uuid, gpu.numa_node, numbers, mib)
