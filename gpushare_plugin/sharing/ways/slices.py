"""Slices of given sizes: a GPU is cut into a few slices, and a container gets one of them.

The names are those of nos. Sizes are parts of a GPU's nominal size, its usable memory rounded up to whole GiB, because
what a container can use of a 40 GB card is a little less than 40 GiB, and two slices of 20gb must fit on it.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from gpushare_plugin.config.schema.sections import Compute, SizedDevices, SliceSize
from gpushare_plugin.foundation.errors import Path
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.foundation.text import some_of
from gpushare_plugin.model.choice.chooser import OneSlice, refuse_several_slices
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Allocation, Grant
from gpushare_plugin.model.resource import Resource, Units
from gpushare_plugin.model.unit import MIB_PER_GIB, Unit, slice_prefix
from gpushare_plugin.sharing.findings import GPUS_TO_NAME, Findings
from gpushare_plugin.sharing.injection import Injection
from gpushare_plugin.sharing.isolation.layer import ContainerShare, Layers, Limits, Part, isolate
from gpushare_plugin.sharing.isolation.share_variables import ShareVariables
from gpushare_plugin.sharing.isolation.table import ISOLATIONS
from gpushare_plugin.sharing.ways.way import Entry, NodeFacts, by_place


class SlicesWay:
    """The entries of `sharing.mps.sizes`."""

    section: Path = ("sharing", "mps", "sizes")

    def __init__(self, node: NodeFacts, findings: Findings) -> None:
        """Share cards."""
        self._node = node
        self._findings = findings
        mps = node.config.sharing.mps
        self._settings = mps.sizes if mps else ()
        self.entries = [self._entry(index, settings) for index, settings in enumerate(self._settings)]

    def _entry(self, index: int, settings: SizedDevices) -> Entry:
        return Entry(
            path=(*self.section, index),
            name=", ".join(each.name for each in settings.slices),
            devices=settings.devices,
            candidates=self._node.inventory.cards,
            isolation=ISOLATIONS["mps"](self._node.config, Limits(_compute(settings))),
            containers=lambda _gpu: sum(each.count for each in settings.slices),
            key="slices",
        )

    def resources(self, unclaimed: Mapping[Gpu, str]) -> list[Resource]:  # noqa: ARG002 - slices are made by entries only
        """Advertise one resource a size; several entries, and several sizes of one GPU, can have a part in it."""
        by_size: dict[SliceSize, dict[Gpu, Sequence[Unit]]] = {}
        names: dict[SliceSize, str] = {}
        layers: dict[str, Layers] = {}
        for entry, settings in zip(self.entries, self._settings, strict=True):
            self._refuse_too_much(entry, settings)
            for gpu in entry.gpus:
                layers[gpu.uuid] = (ShareVariables(), *entry.isolation.layers)
                for each in settings.slices:
                    names[each.size] = each.name
                    units = slice_units(gpu, self._node.short_uuids[gpu.uuid], each.size, each.count)
                    by_size.setdefault(each.size, {})[gpu] = units
        return [
            Resource(
                name,
                Units({gpu: by_size[size][gpu] for gpu in by_place(by_size[size])}),
                OneSlice(),
                SliceGranter(size, self._node.injection, layers),
            )
            for size, name in sorted(names.items())
        ]

    def _refuse_too_much(self, entry: Entry, settings: SizedDevices) -> None:
        total = sum(each.size.parts * each.count for each in settings.slices)
        too_small = [
            f"{gpu.description} has {nominal}gb, its {gpu.memory_mib} MiB rounded up to GiB"
            for gpu in entry.gpus
            if (nominal := nominal_size(gpu)) < total
        ]
        if too_small:
            asked = " + ".join(f"{each.count} x {each.size}" for each in settings.slices)
            gpus = some_of(too_small, GPUS_TO_NAME)
            self._findings.problem(
                (*entry.path, "slices"), f"{asked} = {total}gb found, but {gpus}; take smaller or fewer slices"
            )


class SliceGranter(Struct, frozen=True):
    """Gives a container one slice of `size`; `layers`, by the UUID of its GPU, hold it to that."""

    size: SliceSize
    injection: Injection
    layers: Mapping[str, Layers]

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPU and the limits of the slice."""
        refuse_several_slices(allocation.resource, len(allocation.ids))
        (allocated,) = allocation.gpus
        part = Part(allocated.gpu, allocated.mib, Fraction(self.size.parts, nominal_size(allocated.gpu)))
        share = ContainerShare((part,), allocation.ids)
        return isolate(self.injection.grant([allocated.gpu]), share, self.layers[allocated.gpu.uuid])


def _compute(settings: SizedDevices) -> Compute:
    if settings.compute == "equal":
        return 100 // sum(each.count for each in settings.slices) or 1
    return settings.compute


def nominal_size(gpu: Gpu) -> int:
    """Return the parts that the slices of `gpu` can have in all: its usable memory in GiB, rounded up."""
    return -(-gpu.memory_mib // MIB_PER_GIB)


def slice_units(gpu: Gpu, short_uuid: str, size: SliceSize, count: int) -> list[Unit]:
    """Cut `count` slices of `size` from `gpu`; each has its proportion of the usable memory, rounded down to MiB."""
    prefix = slice_prefix(short_uuid, str(size))
    mib = gpu.memory_mib * size.parts // nominal_size(gpu)
    return [Unit(f"{prefix}{number}", gpu.uuid, number, gpu.numa_node, mib) for number in range(count)]
