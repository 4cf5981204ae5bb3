"""The unit: what the kubelet counts and allocates, and the ID that names it.

The ID is the only thing that comes back from the kubelet, and it outlives our process in the kubelet's checkpoint:
whatever must be known of a unit later (its GPU, its size) is read from the ID, never from pods or annotations. An ID is
parsed where it comes in; from there on the unit knows its form.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Literal

from gpushare_plugin.foundation.memory import MIB, MIB_PER_GIB
from gpushare_plugin.foundation.structs import Meta, Struct
from gpushare_plugin.model.slices.slice import Slice

Amount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A number that is read from a record: no GPU has more MiB or units, and none has fewer than none."""

KUBELET_MESSAGE_LIMIT = 4 * MIB
"""Bytes of the largest message the kubelet's gRPC client takes (the default of grpc-go)."""

MOST_UNITS = KUBELET_MESSAGE_LIMIT // 16
"""Units of a resource that a node can have: no list of more of them fits, for a unit takes 16 bytes at the least."""

UnitKind = Literal["whole", "replica", "memory", "slice", "cores"]
"""What a unit is: a GPU, one of its replicas, some of its memory, a slice, or a percent of its compute."""

_SHORT_UUID_DIGITS = 8
_UUID = r"(?P<gpu>(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})"
_SHORT = r"(?P<gpu>[0-9a-f]{8,32})"
_FORMS: Mapping[UnitKind, re.Pattern[str]] = {
    "whole": re.compile(_UUID),
    "replica": re.compile(rf"{_UUID}::(?P<number>[0-9]{{1,9}})"),
    "memory": re.compile(rf"{_SHORT}-(?P<size>[0-9]{{1,9}})(?P<scale>[GM]i)-(?P<number>[0-9]{{1,9}})"),
    "slice": re.compile(rf"{_SHORT}-(?P<size>[0-9]{{1,9}})gb-(?P<number>[0-9]{{1,9}})"),
    "cores": re.compile(rf"{_SHORT}-core-(?P<number>[0-9]{{1,9}})"),
}


class Form(Struct, frozen=True, gc=False):
    """What the units of one kind on one GPU have in common: all of them share one object."""

    kind: UnitKind
    """What the units are."""
    gpu: str
    """What their IDs hold of the name of the GPU: its UUID, or the first digits of it."""
    prefix: str
    """What their IDs begin with; a number follows, but for a whole GPU."""
    slice: Slice | None = None
    """The slice that each unit is, None for units of other kinds."""

    @classmethod
    def whole(cls, uuid: str) -> "Form":
        """Return the form of the one unit of a GPU that is not shared."""
        return cls("whole", uuid, uuid)

    @classmethod
    def replica(cls, uuid: str) -> "Form":
        """Return the form of the replicas of a GPU, as NVIDIA's plugin and dcgm-exporter have it."""
        return cls("replica", uuid, f"{uuid}::")

    @classmethod
    def memory(cls, short_uuid: str, unit_mib: int) -> "Form":
        """Return the form of units of so many MiB of memory.

        Short, because a list of thousands goes over the wire, and with the size in it, so that an ID which a pod still
        holds never comes to mean another amount after the unit in the config was changed.
        """
        size = f"{unit_mib // MIB_PER_GIB}Gi" if unit_mib % MIB_PER_GIB == 0 else f"{unit_mib}Mi"
        return cls("memory", short_uuid, f"{short_uuid}-{size}-")

    @classmethod
    def cut(cls, short_uuid: str, size: Slice) -> "Form":
        """Return the form of the slices of one size."""
        return cls("slice", short_uuid, f"{short_uuid}-{size.name}-", size)

    @classmethod
    def cores(cls, short_uuid: str) -> "Form":
        """Return the form of the units of compute of a GPU."""
        return cls("cores", short_uuid, f"{short_uuid}-core-")

    def units(self, gpu: str, numa_node: int | None, numbers: Iterable[int], mib: int = 0) -> "list[Unit]":
        """Return units of this form with these numbers, each with so many MiB of memory."""
        prefix = self.prefix
        return [Unit(f"{prefix}{number}", gpu, number, self, numa_node, mib) for number in numbers]


class Unit(Struct, frozen=True):
    """One thing the kubelet can allocate."""

    id: str
    """The device ID, which the kubelet knows it by."""
    gpu: str
    """The UUID of its GPU; of a GPU that is not known, what the ID holds of the name."""
    number: int
    """Its place among the units of that GPU."""
    form: Form
    """What it has in common with the units beside it."""
    numa_node: int | None = None
    """The NUMA node of the GPU, None where the host does not say."""
    mib: int = 0
    """The GPU memory it stands for in MiB, 0 where it does not stand for memory."""

    def on(self, gpus: Mapping[str, int | None]) -> "Unit":
        """Return the unit on its GPU among `gpus`, which are NUMA nodes by UUID, where that is one of these."""
        gpu, name = self.gpu, self.form.gpu
        if gpu not in gpus:
            gpu = next((uuid for uuid in gpus if _all_digits(uuid).startswith(name)), name)
        numa_node = gpus.get(gpu)
        if (gpu, numa_node) == (self.gpu, self.numa_node):
            return self
        return Unit(self.id, gpu, self.number, self.form, numa_node, self.mib)


def short_uuids(uuids: Iterable[str]) -> dict[str, str]:
    """Return a short name for each GPU UUID: its first eight digits, as `nvidia-smi -L` shows them.

    GPUs that share those digits are named by all their digits instead, so names never clash.
    """
    digits = {uuid: _all_digits(uuid) for uuid in uuids}
    prefixes = [name[:_SHORT_UUID_DIGITS] for name in digits.values()]
    return {
        uuid: name if prefixes.count(name[:_SHORT_UUID_DIGITS]) > 1 else name[:_SHORT_UUID_DIGITS]
        for uuid, name in digits.items()
    }


def _all_digits(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").replace("-", "")


def parse_unit(id_: str, gpus: Mapping[str, int | None]) -> Unit | None:
    """Return the unit that `id_` names, None for an ID that is no unit's; `gpus` are NUMA nodes by UUID.

    The config may have changed since the ID was allocated, so nothing but the ID itself says what it stands for. A
    slice has its nominal memory.
    """
    for kind, form in _FORMS.items():
        if (match := form.fullmatch(id_)) is not None:
            found = match.groupdict()
            number, gpu, size = int(found.get("number") or 0), found["gpu"], int(found.get("size") or 0)
            prefix = id_ if kind == "whole" else id_.removesuffix(str(number))
            mib = size if found.get("scale") == "Mi" else size * MIB_PER_GIB
            return Unit(id_, gpu, number, _form(kind, gpu, prefix, size), None, mib).on(gpus)
    return None


@lru_cache(maxsize=4096)
def _form(kind: UnitKind, gpu: str, prefix: str, gib: int) -> Form:
    return Form(kind, gpu, prefix, Slice("mps", f"{gib}gb") if kind == "slice" else None)


def is_slice(id_: str) -> bool:
    """Return whether an ID is that of a slice, without parsing it: the kubelet's checkpoint lists thousands."""
    return _FORMS["slice"].fullmatch(id_) is not None


def wire_size(id_prefix: str, count: int, numa_node: int | None) -> int:
    """Return the bytes that `count` units, named `id_prefix` plus a number from 0 up, take in a device list.

    Follows the protobuf encoding of `ListAndWatchResponse` (proto/gpushare_plugin/kubelet/api/deviceplugin.proto) with
    every unit Healthy: every length stays below 128, so each tag and each length is one byte. A list in which units are
    unhealthy is not longer than that, or can be made so (`adapters.kubelet.device_plugin.device_list`).
    """
    return count * _entry_size(len(id_prefix), numa_node) + _digits_up_to(count)


def _entry_size(id_length: int, numa_node: int | None) -> int:
    topology = 0 if numa_node is None else 4 + (2 if numa_node else 0)
    return 2 + (2 + id_length) + (2 + len("Healthy")) + topology


def listed_size(units: Iterable[Unit]) -> int:
    """Return the bytes that `units`, of any kind, take in a device list; see `wire_size`."""
    every = list(units)
    nodes = Counter(map(attrgetter("numa_node"), every))
    return sum(map(len, map(attrgetter("id"), every))) + sum(
        count * _entry_size(0, numa_node) for numa_node, count in nodes.items()
    )


def _digits_up_to(count: int) -> int:
    """Return how many digits the numbers 0 … count-1 have in all."""
    total, first, width = 0, 0, 1
    while first < count:
        beyond = min(count, 10**width)
        total += (beyond - first) * width
        first, width = beyond, width + 1
    return total
