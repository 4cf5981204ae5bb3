"""The record of a node: its snapshot as the value of the annotation `gpushare/gpus`, for schedulers and people.

`docs/cluster.md` describes the format.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.structs import Meta, Struct, replace
from gpushare_plugin.model.choice.chooser import CloseGpus, OneGpu, OneSlice, Replicas
from gpushare_plugin.model.gpu import Closeness, Gpu
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.slices.mig import MOST_MIG_PROFILES, MigProfile
from gpushare_plugin.model.slices.slice import Kind
from gpushare_plugin.model.snapshot import SharingMode, Snapshot
from gpushare_plugin.model.unit import MOST_UNITS, Amount

GPUS_ANNOTATION = "gpushare/gpus"
"""Annotation: the GPUs of the node, see `NodeRecord`."""

MOST_NOTICES = 20
LONGEST_NOTICE = 512
"""Notices in the annotation, and bytes of each; all annotations of an object share 256 KiB. The log has all."""


_SHOWN = 64
"""Characters of a name that messages repeat."""
MOST_CARDS = 256
"""Cards of a node that are chosen by their closeness, in time that grows with the cube of their number."""


class RecordError(GpushareError):
    """The value of the annotation is not a valid record."""


def key(name: str) -> str:
    """Return the key that stands for a field in JSON, such as memoryMiB for memory_mib."""
    first, *others = name.split("_")
    return first + "".join("MiB" if other == "mib" else other.capitalize() for other in others)


class _Record(Struct, frozen=True, rename=key, gc=False):
    """A part of the annotation; readers ignore keys that they do not know."""


class GpuRecord(_Record, frozen=True, kw_only=True):
    """One GPU in one resource: `mode`, `resource` and `units` are None and 0 where it is not offered.

    A GPU of slices of several sizes has a record for each, one that offers memory and compute has two, a MIG instance
    has one of its own, with its `profile` and the index of its card. `memory_mib` is what containers can use,
    `unit_mib` the memory one unit stands for, 0 where units are not memory. `reason` says why it is not healthy, not
    offered yet, or `unsuitable`: it cannot have slices though its node is divided into them. `product` and `numa_node`
    are as in `Gpu`. Where MIG instances are made as wanted, `profiles` are those of a card in MIG mode, and `start` is
    the first memory slice of an instance. `most_slices` is how many slices MPS serves on a card that is partitioned,
    None for as many as usual.
    """

    index: Amount
    uuid: str
    product: str | None = None
    profile: str | None = None
    numa_node: int | None = None
    memory_mib: Amount
    mode: SharingMode | None = None
    resource: str | None = None
    units: Amount = 0
    unit_mib: Amount = 0
    healthy: bool = True
    reason: str | None = None
    unsuitable: Literal[True] | None = None
    start: Amount | None = None
    profiles: Annotated[tuple[MigProfile, ...], Meta(max_length=MOST_MIG_PROFILES)] | None = None
    most_slices: Amount | None = None


class ResourceRecord(_Record, frozen=True, kw_only=True):
    """How the node chooses GPUs for requests of one resource.

    `kind` is what its units are: `memory`, `cores` (percent of compute, on the GPU where a container has its memory),
    `replicas`, `slices` or `gpus` (whole ones); a reader cannot choose for a kind it does not know. `placement` is the
    policy, for memory units, cores and replicas only. With `single_gpu` a pod cannot have units of several GPUs:
    the limits of its containers would not hold there.
    """

    name: str
    kind: str
    placement: str | None = None
    single_gpu: Literal[True] | None = None


class NodeRecord(_Record, frozen=True, kw_only=True):
    """The whole annotation; `version` changes when readers of the old one would be wrong.

    `gpus` are sorted by place, which decides among equals. `closeness` has a row for each card but the first, in the
    order of `gpus`: how close it is to each card before it; None where no card is close to another. `partitioning` is
    how the GPUs are cut into the slices that annotations want, None where the config says how they are shared.
    `placement` is the policy that the config names for the node; None where it names none, and in records of daemons
    from before there was this field.
    """

    version: Literal[1] = 1
    gpus: tuple[GpuRecord, ...]
    resources: tuple[ResourceRecord, ...] = ()
    closeness: tuple[tuple[int, ...], ...] | None = None
    notices: tuple[str, ...] = ()
    partitioning: Kind | None = None
    placement: str | None = None


def closeness(cards: Sequence[str], rows: Sequence[Sequence[int]] | None) -> Closeness:
    """Return the closeness in a record by the UUIDs of its cards, without pairs that are not close."""
    of_cards = zip(cards[1:], rows or (), strict=False)
    pairs = ((card, other, score) for card, row in of_cards for other, score in zip(cards, row, strict=False))
    return {frozenset((card, other)): score for card, other, score in pairs if score}


_DECODER = msgspec.json.Decoder(NodeRecord)
_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?", re.DOTALL)
"""Errors of msgspec: what is wrong, and where, such as `$.gpus[0].units`."""


def encode(record: NodeRecord) -> str:
    """Return a record as the value of the annotation, the same for equal records; fields that are None are left out."""
    built: dict[str, Any] = msgspec.to_builtins(record)
    gpus, resources = built["gpus"], built["resources"]
    built |= {"gpus": [*map(_known, gpus)], "resources": [*map(_known, resources)]}
    return msgspec.json.encode(_known(built)).decode()


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def decode(text: str) -> NodeRecord:
    """Return the record in the value of the annotation; raises RecordError for anything but version 1."""
    try:
        found = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise RecordError(f"annotation {GPUS_ANNOTATION}: {_problem(text, error)}") from error
    if excess := _excess(found):
        raise RecordError(f"annotation {GPUS_ANNOTATION}: {excess}; expected a record of version 1")
    return found


def _excess(found: NodeRecord) -> str | None:
    """Return what a record has more of than any node, None for nothing: GPUs are chosen in time that grows with it."""
    if found.closeness is not None and len(found.closeness) >= MOST_CARDS:
        return f"closeness: {len(found.closeness) + 1:,} cards found, at most {MOST_CARDS} allowed"
    units: dict[str, int] = {}
    for gpu in found.gpus:
        if gpu.resource is not None:
            units[gpu.resource] = units.get(gpu.resource, 0) + gpu.units
    for resource, count in units.items():
        if count > MOST_UNITS:
            return f"gpus: {count:,} units of {resource[:_SHOWN]!r} found, at most {MOST_UNITS:,} allowed"
    return None


def _problem(text: str, error: Exception) -> str:
    """Return what is wrong with the value of the annotation, where, and what is expected."""
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
    """Return the version in the value of the annotation, None where what comes after it cannot be read."""
    try:
        return msgspec.json.decode(text, type=dict[str, object]).get("version")
    except (msgspec.DecodeError, RecursionError):
        return None


def record(snapshot: Snapshot) -> NodeRecord:
    """Describe a node for its annotation."""
    gpus = tuple(each for gpu in snapshot.inventory.gpus for each in _records(snapshot, gpu))
    return NodeRecord(
        gpus=gpus,
        resources=tuple(each for resource in snapshot.resources if (each := resource_record(resource)) is not None),
        closeness=_rows(_cards(gpus), snapshot.inventory.closeness),
        notices=tuple(_shortened(snapshot.notices)),
        partitioning=snapshot.partitioning,
        placement=snapshot.placement,
    )


def resource_record(resource: Resource) -> ResourceRecord | None:
    """Return how a resource is chosen from, None where its chooser has no kind here."""
    match resource.chooser:
        case OneGpu(placement=placement):
            kind = "cores" if resource.role == "cores" else "memory"
            single_gpu: Literal[True] | None = True if resource.single_gpu else None
            return ResourceRecord(name=resource.name, kind=kind, placement=placement, single_gpu=single_gpu)
        case Replicas(placement=placement):
            return ResourceRecord(name=resource.name, kind="replicas", placement=placement)
        case OneSlice():
            return ResourceRecord(name=resource.name, kind="slices")
        case CloseGpus():
            return ResourceRecord(name=resource.name, kind="gpus")
        case _:
            return None


def _cards(gpus: Iterable[GpuRecord]) -> list[str]:
    """Return the UUIDs of the cards, in order: a card can have several records."""
    return list(dict.fromkeys(gpu.uuid for gpu in gpus if gpu.profile is None))


def _rows(cards: Sequence[str], closeness: Closeness) -> tuple[tuple[int, ...], ...] | None:
    """Return how close each card is to those before it: each pair once, and no UUID twice."""
    rows = tuple(
        tuple(closeness.get(frozenset((card, other)), 0) for other in cards[:number])
        for number, card in enumerate(cards)
    )
    return rows[1:] if any(map(any, rows)) else None


def _shortened(notices: Sequence[str]) -> Iterator[str]:
    """Yield as many notices as there is room for, each cut to the room it has, and how many more there are."""
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
        product=gpu.product,
        profile=gpu.mig.profile if gpu.mig else None,
        numa_node=gpu.numa_node,
        memory_mib=gpu.memory_mib,
        healthy=gpu.uuid not in snapshot.excluded,
        reason=snapshot.reasons.get(gpu.uuid),
        unsuitable=True if gpu.uuid in snapshot.unsuitable else None,
        start=gpu.mig.start if gpu.mig and mig else None,
        profiles=room.profiles if room else None,
        most_slices=snapshot.most_slices.get(gpu.uuid),
    )
    offers = snapshot.offers(gpu)
    for resource, units in offers.items():
        offer = {"mode": snapshot.mode(gpu), "resource": resource, "units": len(units), "unit_mib": units[0].mib}
        yield replace(alone, **offer)
    if not offers and (not gpu.mig or mig):
        yield alone
