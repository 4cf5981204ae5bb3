"""The unit: what the kubelet counts and allocates, and the ID that names it.

The ID is the only thing that comes back from the kubelet, and it outlives our process in the kubelet's checkpoint:
whatever must be known of a unit later (its GPU, its size) is read from the ID, never from pods or annotations.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Annotated

from gpushare_plugin.foundation.memory import MIB, MIB_PER_GIB
from gpushare_plugin.foundation.structs import Meta, Struct

Amount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A number that is read from a record: no GPU has more MiB or units, and none has fewer than none."""

KUBELET_MESSAGE_LIMIT = 4 * MIB
"""Bytes of the largest message the kubelet's gRPC client takes (the default of grpc-go)."""

_SHORT_UUID_DIGITS = 8
_WHOLE_OR_REPLICA_ID = re.compile(
    r"(?P<uuid>(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(::(?P<number>[0-9]{1,9}))?"
)
_SLICE_ID = re.compile(r"(?P<short>[0-9a-f]{8,32})-(?P<gib>[0-9]{1,9})gb-(?P<number>[0-9]{1,9})")
_CORES_ID = re.compile(r"(?P<short>[0-9a-f]{8,32})-core-(?P<number>[0-9]{1,9})")
_MEMORY_ID = re.compile(r"(?P<short>[0-9a-f]{8,32})-(?P<size>[0-9]{1,9})(?P<scale>[GM]i)-(?P<number>[0-9]{1,9})")

_FORMS = (_WHOLE_OR_REPLICA_ID, _MEMORY_ID, _SLICE_ID, _CORES_ID)


class Unit(Struct, frozen=True):
    """One thing the kubelet can allocate.

    `gpu` is the UUID of the GPU it sits on, `number` its place among the units of that GPU, `mib` the GPU memory it
    stands for in MiB (0 where a unit does not stand for memory).
    """

    id: str
    gpu: str
    number: int
    numa_node: int | None = None
    mib: int = 0


def replica_prefix(uuid: str) -> str:
    """Return what the IDs of all replicas of one GPU begin with; a number follows.

    The form NVIDIA's plugin and dcgm-exporter use.
    """
    return f"{uuid}::"


def memory_prefix(short_uuid: str, unit_mib: int) -> str:
    """Return what the IDs of all memory units of one GPU begin with; a number follows.

    Short, because a list of thousands goes over the wire, and with the size in it, so that an ID which a pod still
    holds never comes to mean another amount after the unit in the config was changed.
    """
    size = f"{unit_mib // MIB_PER_GIB}Gi" if unit_mib % MIB_PER_GIB == 0 else f"{unit_mib}Mi"
    return f"{short_uuid}-{size}-"


def slice_prefix(short_uuid: str, size: str) -> str:
    """Return what the IDs of all slices of `size`, such as `10gb`, of one GPU begin with; a number follows."""
    return f"{short_uuid}-{size}-"


def cores_prefix(short_uuid: str) -> str:
    """Return what the IDs of all units of compute of one GPU begin with; a number follows."""
    return f"{short_uuid}-core-"


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

    The config may have changed since the ID was allocated, so nothing but the ID itself says what it stands for. Of
    a GPU that is not among `gpus`, the unit knows what the ID holds of its name. A slice has its nominal memory.
    """
    match = next((match for form in _FORMS if (match := form.fullmatch(id_))), None)
    if match is None:
        return None
    found = match.groupdict()
    known = (uuid for uuid in gpus if uuid == found.get("uuid") or _is_short(found.get("short"), uuid))
    gpu = next(known, found.get("uuid") or found.get("short", ""))
    scale = MIB_PER_GIB if found.get("scale") == "Gi" else 1
    mib = int(found.get("size") or 0) * scale + int(found.get("gib") or 0) * MIB_PER_GIB
    return Unit(id_, gpu, int(found["number"] or 0), gpus.get(gpu), mib)


def is_slice(id_: str) -> bool:
    """Return whether an ID is that of a slice."""
    return _SLICE_ID.fullmatch(id_) is not None


def is_cores(id_: str) -> bool:
    """Return whether an ID is that of a unit of compute."""
    return _CORES_ID.fullmatch(id_) is not None


def _is_short(name: str | None, uuid: str) -> bool:
    return name is not None and _all_digits(uuid).startswith(name)


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
