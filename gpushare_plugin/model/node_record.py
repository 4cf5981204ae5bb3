"""The record of a node: its snapshot as the value of the annotation `gpushare/gpus`, for schedulers and people.

`docs/cluster.md` describes the format.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.snapshot import SharingMode, Snapshot

GPUS_ANNOTATION = "gpushare/gpus"
"""Annotation: the GPUs of the node, see `NodeRecord`."""

MOST_NOTICES = 20
LONGEST_NOTICE = 512
"""Notices in the annotation, and bytes of each: all annotations of an object share 256 KiB. The log has them whole."""


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
    mode: SharingMode | None = None
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
            f"annotation {GPUS_ANNOTATION}: {where}: {first['msg']}; expected is version 1 as this gpushare writes it"
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
        told = {"mode": snapshot.mode(gpu), "resource": resource, "units": len(units), "unit_mib": units[0].mib}
        yield alone.model_copy(update=told)
    if not offers and not gpu.mig:
        yield alone
