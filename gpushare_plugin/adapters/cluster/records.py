"""What is written on a Node and read from it: the names, and the formats that are our own; pure.

Keys of our own begin with `gpushare/`, a prefix that is no domain of somebody else's.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.sharing.snapshot import Snapshot

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

MOST_NOTICES = 20
LONGEST_NOTICE = 512
"""Notices in the annotation, and bytes of each: all annotations of an object share 256 KiB. The log has them whole."""

Mode = Literal["memory", "time-slicing", "mps", "exclusive"]


class RecordError(GpushareError):
    """An annotation of ours that cannot be understood."""


class _Record(BaseModel):
    """A part of an annotation; readers pass over what a later minor change adds."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


class GpuRecord(_Record):
    """One GPU in one resource: `mode`, `resource` and `units` are None and 0 where it is offered in no way.

    A GPU of slices of several sizes has a record for each, a MIG instance one of its own, with its `profile` and the
    index of its card. `memory_mib` is what containers can use, `unit_mib` the memory one unit stands for, 0 where units
    are no memory. `reason` tells why it is not healthy, or not offered yet.
    """

    index: int
    uuid: str
    profile: str | None = None
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
    gpus = [each for gpu in snapshot.inventory.devices for each in _records(snapshot, gpu)]
    return NodeRecord(gpus=tuple(gpus), notices=tuple(_told(snapshot.notices)))


def _told(notices: Sequence[str]) -> Iterator[str]:
    """Give as many notices as there is room for, each as far as there is, and say how many more there are."""
    for notice in notices[:MOST_NOTICES]:
        text = notice.encode()
        room = LONGEST_NOTICE - len("…".encode())
        yield notice if len(text) <= LONGEST_NOTICE else f"{text[:room].decode(errors='ignore')}…"
    if (more := len(notices) - MOST_NOTICES) > 0:
        yield f"{more:,} more notices are left out here; see the log of gpushare on this node"


def mode_of(snapshot: Snapshot, gpu: Gpu) -> Mode | None:
    """Tell how a GPU is shared, None where it is offered in no way."""
    units = next(iter(snapshot.offers(gpu).values()), ())
    if not units:
        return None
    if gpu.uuid in snapshot.under_mps:
        return "mps"
    if units[0].mib:
        return "memory"
    return "exclusive" if len(units) == 1 else "time-slicing"


def _records(snapshot: Snapshot, gpu: Gpu) -> Iterator[GpuRecord]:
    alone = GpuRecord(
        index=gpu.index,
        uuid=gpu.uuid,
        profile=gpu.mig.profile if gpu.mig else None,
        memory_mib=gpu.memory_mib,
        healthy=gpu.uuid not in snapshot.unhealthy,
        reason=snapshot.unhealthy.get(gpu.uuid) or snapshot.waiting.get(gpu.uuid),
    )
    offers = snapshot.offers(gpu)
    for resource, units in offers.items():
        told = {"mode": mode_of(snapshot, gpu), "resource": resource, "units": len(units), "unit_mib": units[0].mib}
        yield alone.model_copy(update=told)
    if not offers and not gpu.mig:
        yield alone


def cordon_configmap(node: str) -> str:
    """Return the name of the ConfigMap that takes GPUs of a node out."""
    return f"unhealthy-gpu-{node}"
