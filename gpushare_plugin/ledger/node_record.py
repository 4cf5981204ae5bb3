"""The record of a node: the snapshot as the value of the annotation `gpushare/gpus`, for schedulers and people.

`docs/cluster.md` describes the format.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Meta, Struct, field, replace
from gpushare_plugin.base.version import __version__
from gpushare_plugin.core.chooser import CloseGpus, OneGpu, OneSlice, Replicas
from gpushare_plugin.core.gpu import Closeness, Gpu
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.snapshot import SharingMode, Snapshot
from gpushare_plugin.core.unit import MOST_UNITS, Amount
from gpushare_plugin.slices.mig import MOST_MIG_PROFILES, MigProfile
from gpushare_plugin.slices.slice import SliceKind

GPUS_ANNOTATION = "gpushare/gpus"
"""The annotation with the GPUs of the node, see `NodeRecord`."""

MOST_NOTICES = 20
LONGEST_NOTICE = 512
"""The most notices in the annotation, and the most bytes of a notice: all annotations of an object share 256 KiB.

The log has all notices in full.
"""


_SHOWN = 64
"""The most characters of a resource name in messages."""
MOST_CARDS = 256
"""The most cards of a node with a closeness: the time to choose cards grows with the cube of the number of cards."""


class RecordError(GpushareError):
    """The value of the annotation is not a valid record."""


def key(name: str) -> str:
    """Return the key that stands for a field in JSON, such as memoryMiB for memory_mib."""
    first, *others = name.split("_")
    return first + "".join("MiB" if other == "mib" else other.capitalize() for other in others)


class _Record(Struct, frozen=True, rename=key, gc=False):
    """A part of the annotation; readers ignore unknown keys."""


class GpuRecord(_Record, frozen=True, kw_only=True):
    """One GPU in one resource, or one GPU that is not offered.

    A GPU in several resources has several records: one for each size of slices, or one for memory and one for compute.
    A MIG instance has a record of its own.
    """

    index: Amount
    """The index of the card."""
    uuid: str
    """The UUID of the GPU."""
    product: str | None = None
    """The model, with the profile for a MIG instance."""
    profile: str | None = None
    """The profile of a MIG instance, None for a card."""
    numa_node: int | None = None
    """The NUMA node, None if the host does not report the NUMA node."""
    memory_mib: Amount
    """The memory that containers can use, in MiB; 0 where unknown."""
    mode: SharingMode | None = None
    """The mode of sharing, None for a GPU that is not offered."""
    resource: str | None = None
    """The name of the resource, None for a GPU that is not offered."""
    units: Amount = 0
    """The number of units in the resource, 0 for a GPU that is not offered."""
    unit_mib: Amount = 0
    """The memory of one unit in MiB, 0 if units are not memory."""
    healthy: bool = True
    """Whether units can be allocated; false for example for a faulty or cordoned GPU."""
    reason: str | None = None
    """The reason why the GPU is not healthy, is not shared as configured yet, or is `unsuitable`; None without one."""
    by_claim: Literal[True] | None = None
    """True for a GPU that pods get by ResourceClaims only, else None."""
    unsuitable: Literal[True] | None = None
    """True for a GPU of a partitioned node that cannot have slices, else None."""
    start: Amount | None = None
    """The first memory slice of a MIG instance, on a node with MIG instances made as wanted; else None."""
    profiles: Annotated[tuple[MigProfile, ...], Meta(max_length=MOST_MIG_PROFILES)] | None = None
    """The profiles of a card in MIG mode, on a node with MIG instances made as wanted; else None."""
    most_slices: Amount | None = None
    """The number of slices that MPS serves on a card of a partitioned node, None for the usual number."""


class ResourceRecord(_Record, frozen=True, kw_only=True):
    """The node's choice of GPUs for requests of one resource."""

    name: str
    """The name of the resource."""
    kind: str
    """The kind of the units: `memory`, `cores`, `replicas`, `slices` or `gpus` (whole GPUs).

    Units of `cores` are percent of compute, on the GPU of the container's memory. A reader cannot choose GPUs for an
    unknown kind.
    """
    policy: str | None = field(default=None, name="placement")
    """The policy, for memory, cores and replicas only."""
    single_gpu: Literal[True] | None = None
    """True if a pod cannot have units of several GPUs, because limits of containers would not hold; else None."""


class NodeRecord(_Record, frozen=True, kw_only=True):
    """The whole annotation."""

    version: Literal[1] = 1
    """The version of the format; changes when readers of the old version would misread the record."""
    gpus: tuple[GpuRecord, ...]
    """The GPUs, sorted by place; among equally good GPUs, the first GPU is chosen."""
    resources: tuple[ResourceRecord, ...] = ()
    """The resources of the node."""
    closeness: tuple[tuple[int, ...], ...] | None = None
    """The closeness of cards, None if no card is close to another card.

    Each card except the first has a row, in the order of `gpus`: the closeness to each earlier card.
    """
    notices: tuple[str, ...] = ()
    """Warnings for people."""
    partitioning: SliceKind | None = None
    """The kind of slices that GPUs are cut into as annotations want, None if the config says how GPUs are shared."""
    policy: str | None = field(default=None, name="placement")
    """The policy that the config names for the node.

    None without a policy in the config, and in records of daemons older than the field.
    """
    config: str | None = None
    """The name of the config in effect, empty without a file; None in records of daemons older than the field."""
    gpushare: str | None = None
    """The version of the daemon; None in records of daemons older than the field."""


def closeness(cards: Sequence[str], rows: Sequence[Sequence[int]] | None) -> Closeness:
    """Return the closeness in `rows` of a record, by pairs of UUIDs of `cards`, without pairs of closeness 0."""
    of_cards = zip(cards[1:], rows or (), strict=False)
    pairs = ((card, other, score) for card, row in of_cards for other, score in zip(cards, row, strict=False))
    return {frozenset((card, other)): score for card, other, score in pairs if score}


_DECODER = msgspec.json.Decoder(NodeRecord)
_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?", re.DOTALL)
"""Matches an error of msgspec: the mistake (`what`), and the place (`where`), such as `$.gpus[0].units`."""


def encode(record: NodeRecord) -> str:
    """Return the annotation value of a record, the same for equal records; fields with None are left out."""
    built: dict[str, Any] = msgspec.to_builtins(record)
    gpus, resources = built["gpus"], built["resources"]
    built |= {"gpus": [*map(_known, gpus)], "resources": [*map(_known, resources)]}
    return msgspec.json.encode(_known(built)).decode()


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def decode(text: str) -> NodeRecord:
    """Return the record in an annotation value; raises RecordError for anything but a valid record of version 1."""
    try:
        found = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise RecordError(f"annotation {GPUS_ANNOTATION}: {_problem(text, error)}") from error
    if excess := _excess(found):
        raise RecordError(f"annotation {GPUS_ANNOTATION}: {excess}; expected a record of version 1")
    return found


def _excess(found: NodeRecord) -> str | None:
    """Return a message about too many cards or units in a record, or about a GPU listed twice; None for a valid record.

    The time to choose GPUs grows with the number of cards and units.
    """
    if found.closeness is not None and len(found.closeness) >= MOST_CARDS:
        return f"closeness: {len(found.closeness) + 1:,} cards found, at most {MOST_CARDS} allowed"
    units: dict[str, int] = {}
    offered: set[tuple[str, str]] = set()
    for gpu in found.gpus:
        if gpu.resource is not None:
            if (gpu.resource, gpu.uuid) in offered:
                return f"gpus: GPU {gpu.uuid[:_SHOWN]!r} found twice in {gpu.resource[:_SHOWN]!r}, once allowed"
            offered.add((gpu.resource, gpu.uuid))
            units[gpu.resource] = units.get(gpu.resource, 0) + gpu.units
    for resource, count in units.items():
        if count > MOST_UNITS:
            return f"gpus: {count:,} units of {resource[:_SHOWN]!r} found, at most {MOST_UNITS:,} allowed"
    return None


def _problem(text: str, error: Exception) -> str:
    """Return a message about a wrong annotation value: the place, the mistake, and the expected value."""
    place = _PLACE.fullmatch(str(error))
    what, where = (place["what"], place["where"] or "") if place else (str(error), "")
    if where == "version" and (found := _version(text)) is not None:
        return (
            f"version {str(found)[:32]!r} found, version 1 expected: if the node has a later version of gpushare, "
            "update this gpushare"
        )
    if missing := re.search(r"missing required field `(.*)`", what):
        where = f"{where}.{missing[1]}"
    where = where.replace("[", ".").replace("]", "").strip(".") or "the value"
    return f"{where}: {what}; expected a record of version 1"


def _version(text: str) -> object:
    """Return the version in an annotation value, None without a version or for an invalid JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, object]).get("version")
    except (msgspec.DecodeError, RecursionError):
        return None


def record(snapshot: Snapshot) -> NodeRecord:
    """Return the record of a node from a snapshot."""
    gpus = tuple(each for gpu in snapshot.inventory.gpus for each in _records(snapshot, gpu))
    return NodeRecord(
        gpus=gpus,
        resources=tuple(each for resource in snapshot.resources if (each := resource_record(resource)) is not None),
        closeness=_rows(_cards(gpus), snapshot.inventory.closeness),
        notices=tuple(_shortened(snapshot.notices)),
        partitioning=snapshot.partitioning,
        policy=snapshot.policy,
        config=snapshot.config.name if snapshot.config else None,
        gpushare=__version__,
    )


def resource_record(resource: Resource) -> ResourceRecord | None:
    """Return the record of a resource, None for a chooser without a kind in records."""
    match resource.chooser:
        case OneGpu(policy=policy):
            kind = "cores" if resource.role == "cores" else "memory"
            single_gpu: Literal[True] | None = True if resource.single_gpu else None
            return ResourceRecord(name=resource.name, kind=kind, policy=policy, single_gpu=single_gpu)
        case Replicas(policy=policy):
            return ResourceRecord(name=resource.name, kind="replicas", policy=policy)
        case OneSlice():
            return ResourceRecord(name=resource.name, kind="slices")
        case CloseGpus():
            return ResourceRecord(name=resource.name, kind="gpus")
        case _:
            return None


def _cards(gpus: Iterable[GpuRecord]) -> list[str]:
    """Return the UUID of each card once, in order: a card can have several records."""
    return list(dict.fromkeys(gpu.uuid for gpu in gpus if gpu.profile is None))


def _rows(cards: Sequence[str], closeness: Closeness) -> tuple[tuple[int, ...], ...] | None:
    """Return the closeness of each card to each earlier card, None if no card is close to another card."""
    rows = tuple(
        tuple(closeness.get(frozenset((card, other)), 0) for other in cards[:number])
        for number, card in enumerate(cards)
    )
    return rows[1:] if any(map(any, rows)) else None


def _shortened(notices: Sequence[str]) -> Iterator[str]:
    """Yield the first MOST_NOTICES notices, each cut to LONGEST_NOTICE bytes, and a count of further notices."""
    for notice in notices[:MOST_NOTICES]:
        text = notice.encode()
        room = LONGEST_NOTICE - len("…".encode())
        yield notice if len(text) <= LONGEST_NOTICE else f"{text[:room].decode(errors='ignore')}…"
    if (more := len(notices) - MOST_NOTICES) > 0:
        yield f"{more:,} more warnings; see the log of gpushare on this node"


def _records(snapshot: Snapshot, gpu: Gpu) -> Iterator[GpuRecord]:
    mig = snapshot.partitioning == "mig"
    room = snapshot.mig_rooms.get(gpu.uuid)
    alone = GpuRecord(
        index=gpu.index,
        uuid=gpu.uuid,
        product=gpu.product or None,
        profile=gpu.mig.profile if gpu.mig else None,
        numa_node=gpu.numa_node,
        memory_mib=gpu.memory_mib,
        healthy=gpu.uuid not in snapshot.excluded,
        reason=snapshot.reasons.get(gpu.uuid),
        by_claim=True if gpu.uuid in snapshot.by_claim else None,
        unsuitable=True if gpu.uuid in snapshot.unsuitable else None,
        start=gpu.mig.start if gpu.mig and mig else None,
        profiles=room.profiles if room else None,
        most_slices=snapshot.most_slices.get(gpu.uuid),
    )
    offers = snapshot.offers(gpu)
    for resource, units in offers.items():
        offer = {"mode": snapshot.mode(gpu), "resource": resource, "units": len(units), "unit_mib": units[0].mib}
        yield replace(alone, **offer)
    if not offers and (not gpu.mig or mig or alone.by_claim):
        yield alone
