"""What is written on a Node and read from it: the names, and the formats that are our own; pure.

Keys of our own begin with `gpushare/`, a prefix that is no domain of somebody else's.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from gpushare_plugin.errors import GpushareError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.snapshot import Snapshot

FIELD_MANAGER = "gpushare"
"""Who we are to server-side apply; what this manager owns on a Node is ours to remove."""

GPUS = "gpushare/gpus"
"""Annotation: the GPUs of the node, see `NodeRecord`."""

UNHEALTHY_GPUS = "gpushare/unhealthy-gpus"
"""Annotation that people write: GPUs to take out, by index or UUID, commas between."""

GPU_COUNT = "aliyun.com/gpu-count"
"""Extended resource in the node's status: how many GPUs it has, as Aliyun's tools expect."""

CORDON_NAMESPACE = "kube-system"
CORDON_KEY = "gpus"
"""Where the ConfigMap of Aliyun that takes GPUs out lies, and the key in it that names them."""

Mode = Literal["memory", "time-slicing", "mps", "exclusive"]


class RecordError(GpushareError):
    """An annotation of ours that cannot be understood."""


class _Record(BaseModel):
    """A part of an annotation; readers pass over what a later minor change adds."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


class GpuRecord(_Record):
    """One GPU: `mode`, `resource` and `units` are None and 0 where it is offered in no way.

    `memory_mib` is what containers can use, `unit_mib` the memory one unit stands for, 0 where units are no memory.
    """

    index: int
    uuid: str
    memory_mib: int
    mode: Mode | None = None
    resource: str | None = None
    units: int = 0
    unit_mib: int = 0
    healthy: bool = True
    reason: str | None = None


class NodeRecord(_Record):
    """The whole annotation; `version` changes when readers of the old one would be wrong."""

    version: Literal[1] = 1
    gpus: tuple[GpuRecord, ...]
    notices: tuple[str, ...] = ()


def encode(record: NodeRecord) -> str:
    """Spell a record as the value of its annotation, the same for equal records."""
    return record.model_dump_json(by_alias=True, exclude_none=True)


def decode(text: str) -> NodeRecord:
    """Read the value of the annotation; raises RecordError for anything but version 1."""
    try:
        return NodeRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise RecordError(
            f"annotation {GPUS}: {where}: {first['msg']}; expected is version 1 as this gpushare writes it"
        ) from error


def record(snapshot: Snapshot) -> NodeRecord:
    """Describe a node for its annotation."""
    return NodeRecord(gpus=tuple(_gpu(snapshot, gpu) for gpu in snapshot.inventory.gpus), notices=snapshot.notices)


def mode_of(snapshot: Snapshot, gpu: Gpu) -> Mode | None:
    """Tell how a GPU is shared, None where it is offered in no way."""
    resource, units = snapshot.offered_as(gpu), snapshot.units(gpu)
    if resource is None:
        return None
    if units[0].mib:
        return "memory"
    if len(units) == 1:
        return "exclusive"
    mps = snapshot.config.sharing.mps
    return "mps" if mps and resource.name in map(mps.advertised_name, mps.resources) else "time-slicing"


def _gpu(snapshot: Snapshot, gpu: Gpu) -> GpuRecord:
    resource, units = snapshot.offered_as(gpu), snapshot.units(gpu)
    return GpuRecord(
        index=gpu.index,
        uuid=gpu.uuid,
        memory_mib=gpu.memory_mib,
        mode=mode_of(snapshot, gpu),
        resource=resource.name if resource else None,
        units=len(units),
        unit_mib=units[0].mib if units else 0,
        healthy=gpu.uuid not in snapshot.unhealthy,
        reason=snapshot.unhealthy.get(gpu.uuid),
    )


def cordon_configmap(node: str) -> str:
    """Return the name of the ConfigMap that takes GPUs of a node out."""
    return f"unhealthy-gpu-{node}"


def references(text: str) -> tuple[str, ...]:
    """Return what a list such as `0,1` or `GPU-…` names."""
    return tuple(dict.fromkeys(filter(None, re.split(r"[\s,]+", text))))


def resolve(names: Sequence[str], gpus: Iterable[Gpu]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the UUIDs of the GPUs that are named by index or UUID, and the names that are no GPU's."""
    known = {name: gpu.uuid for gpu in gpus for name in (gpu.uuid, str(gpu.index))}
    return frozenset(known[name] for name in names if name in known), tuple(name for name in names if name not in known)
