"""The unit, which the kubelet counts and allocates, and the ID of the unit.

The kubelet returns only the ID, and keeps the ID in its checkpoint longer than our process lives. Every later fact
about a unit (the GPU, the size) is therefore read from the ID, never from pods or annotations. An ID is parsed where
it comes in; from then on the unit knows its form.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Literal

from gpushare_plugin.base.memory import MIB, MIB_PER_GIB
from gpushare_plugin.base.structs import Meta, Struct
from gpushare_plugin.slices.slice import Slice

Amount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A number read from a record, from 0 to more MiB or units than any GPU has."""

KUBELET_MESSAGE_LIMIT = 4 * MIB
"""Bytes of the largest message that the kubelet's gRPC client accepts (the default of grpc-go)."""

MOST_UNITS = KUBELET_MESSAGE_LIMIT // 16
"""The most units of a resource on a node: a longer list does not fit, because a unit takes at least 16 bytes."""

UnitKind = Literal["whole", "replica", "memory", "slice", "cores"]
"""The kind of a unit: a whole GPU, a replica of a GPU, an amount of memory, a slice, or a percent of compute."""

_SHORT_UUID_DIGITS = 8
_UUID = r"(?P<gpu>(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})"
_SHORT = r"(?P<gpu>[0-9a-f]{8,32})"
_ID_PATTERNS: Mapping[UnitKind, re.Pattern[str]] = {
    "whole": re.compile(_UUID),
    "replica": re.compile(rf"{_UUID}::(?P<number>[0-9]{{1,9}})"),
    "memory": re.compile(rf"{_SHORT}-(?P<size>[0-9]{{1,9}})(?P<scale>[GM]i)-(?P<number>[0-9]{{1,9}})"),
    "slice": re.compile(rf"{_SHORT}-(?P<size>[0-9]{{1,9}})gb-(?P<number>[0-9]{{1,9}})"),
    "cores": re.compile(rf"{_SHORT}-core-(?P<number>[0-9]{{1,9}})"),
}


class Form(Struct, frozen=True, gc=False):
    """The common facts about the units of one kind on one GPU, in one object for all the units."""

    kind: UnitKind
    """The kind of the units."""
    gpu: str
    """The part of the IDs that names the GPU: the UUID, or the first digits of the UUID."""
    prefix: str
    """The beginning of the IDs; a number follows, except for a whole GPU."""
    slice: Slice | None = None
    """The slice for which a unit stands; None for units of another kind."""

    @classmethod
    def whole(cls, uuid: str) -> "Form":
        """Return the form of the single unit of an unshared GPU."""
        return cls("whole", uuid, uuid)

    @classmethod
    def replica(cls, uuid: str) -> "Form":
        """Return the form of the replicas of a GPU; NVIDIA's plugin and dcgm-exporter use the same IDs."""
        return cls("replica", uuid, f"{uuid}::")

    @classmethod
    def memory(cls, short_uuid: str, unit_mib: int) -> "Form":
        """Return the form of units of `unit_mib` MiB of memory.

        The prefix is short, because lists of thousands of units go over the wire. The prefix names the size: after a
        change of the unit in the config, the ID of a held unit still means the same amount.
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
        """Return units of the form on the GPU `gpu` with the given numbers, of `mib` MiB of memory apiece."""
        prefix = self.prefix
        return [Unit(f"{prefix}{number}", gpu, number, self, numa_node, mib) for number in numbers]


class Unit(Struct, frozen=True):
    """The smallest part of a GPU that the kubelet counts and allocates."""

    id: str
    """The device ID for the kubelet."""
    gpu: str
    """The UUID of the GPU; for an unknown GPU, the part of the ID that names the GPU."""
    number: int
    """The number of the unit among the units of the same form."""
    form: Form
    """The common facts about the units of the same kind on the GPU."""
    numa_node: int | None = None
    """The NUMA node of the GPU; None where the host does not tell."""
    mib: int = 0
    """The GPU memory of the unit in MiB; 0 for a unit that does not stand for memory."""

    def on(self, gpus: Mapping[str, int | None]) -> "Unit":
        """Return the unit with the UUID and NUMA node of its GPU where `gpus`, NUMA nodes by UUID, has the GPU."""
        gpu, name = self.gpu, self.form.gpu
        if gpu not in gpus:
            gpu = next((uuid for uuid in gpus if _all_digits(uuid).startswith(name)), name)
        numa_node = gpus.get(gpu)
        if (gpu, numa_node) == (self.gpu, self.numa_node):
            return self
        return Unit(self.id, gpu, self.number, self.form, numa_node, self.mib)


def short_uuids(uuids: Iterable[str]) -> dict[str, str]:
    """Return a short name for every GPU UUID: the first eight digits, as in the output of `nvidia-smi -L`.

    GPUs with the same first digits are named by all their digits, so that names never clash.
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
    """Return the unit named by `id_`, None for an ID that names no unit; `gpus` are NUMA nodes by UUID.

    The config may have changed since the allocation, so only the ID itself tells the meaning of the ID. A slice has
    its nominal memory.
    """
    for kind, pattern in _ID_PATTERNS.items():
        if (match := pattern.fullmatch(id_)) is not None:
            found = match.groupdict()
            number, gpu, size = int(found.get("number") or 0), found["gpu"], int(found.get("size") or 0)
            prefix = id_ if kind == "whole" else id_.removesuffix(str(number))
            mib = size if found.get("scale") == "Mi" else size * MIB_PER_GIB
            return Unit(id_, gpu, number, _form(kind, gpu, prefix, size), None, mib).on(gpus)
    return None


@lru_cache(maxsize=4096)
def _form(kind: UnitKind, gpu: str, prefix: str, size: int) -> Form:
    """Return the form of units; `size` is the number of GiB in the ID of a slice, and has no meaning for others."""
    return Form(kind, gpu, prefix, Slice("mps", f"{size}gb") if kind == "slice" else None)


def is_slice(id_: str) -> bool:
    """Return whether `id_` names a slice, without parsing the ID: the kubelet's checkpoint lists thousands of IDs."""
    return _ID_PATTERNS["slice"].fullmatch(id_) is not None


def wire_size(id_prefix: str, count: int, numa_node: int | None) -> int:
    """Return the bytes in a device list of `count` units with IDs of `id_prefix` and a number from 0 up.

    Follows the protobuf encoding of `ListAndWatchResponse` (proto/gpushare_plugin/kubelet/api/deviceplugin.proto) with
    all units Healthy. Every length stays below 128, so a tag or a length takes one byte. A list with unhealthy units is
    not longer, or can be made no longer (`SerialisedDevices`).
    """
    return count * _entry_size(len(id_prefix), numa_node) + _digits_up_to(count)


def _entry_size(id_length: int, numa_node: int | None) -> int:
    topology = 0 if numa_node is None else 4 + (2 if numa_node else 0)
    return 2 + (2 + id_length) + (2 + len("Healthy")) + topology


def listed_size(units: Iterable[Unit]) -> int:
    """Return the bytes of `units`, of any kind, in a device list; see `wire_size`."""
    every = list(units)
    nodes = Counter(map(attrgetter("numa_node"), every))
    return sum(map(len, map(attrgetter("id"), every))) + sum(
        count * _entry_size(0, numa_node) for numa_node, count in nodes.items()
    )


def _digits_up_to(count: int) -> int:
    """Return the number of digits of the numbers 0 … count-1 together."""
    total, first, width = 0, 0, 1
    while first < count:
        beyond = min(count, 10**width)
        total += (beyond - first) * width
        first, width = beyond, width + 1
    return total
