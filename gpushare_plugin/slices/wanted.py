"""The slices that are wanted of a node, as the value of the annotation `gpushare/wanted-slices`.

`gpushare partition` writes it and the daemon of the node follows it. It is all that the former remembers: for which
waiting pod a slice is kept, and which pods did not take theirs. `docs/partitioning.md` describes the format.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct, field, replace
from gpushare_plugin.slices.slice import Kind, SliceError, named_slice

WANTED_SLICES = "gpushare/wanted-slices"
"""Annotation of the Node: the slices that are wanted of its GPUs, see `Wanted`."""

MOST_SLICES = 1024
"""Slices that are believed to be wanted of one GPU; no GPU has as many."""

MOST_SIZES = 64
"""Sizes, or places, of slices that are believed to be wanted of one GPU: MPS serves 48 slices, whatever their sizes."""

MOST_FAILURES = 256
"""Pods that did not take their slices that are remembered of a node; the last are."""

LONGEST = 128 * 1024
"""Bytes that the annotation has with the names of pods: all annotations of an object share 256 KiB."""

Time = Annotated[datetime, msgspec.Meta(tz=True)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_SLICES)]


class WantedError(GpushareError):
    """The value of the annotation does not say which slices are wanted."""


class KeptSlice(Struct, frozen=True, gc=False):
    """A slice that is kept for a waiting pod: `slice` as in `Wanted.gpus`, on `gpu`, a UUID.

    `since` is when it was decided, an aware time of whole seconds; `pod` is `namespace/name`, for people.
    """

    gpu: str
    slice: str
    since: Time
    pod: str = ""


class Failure(Struct, frozen=True):
    """A pod did not take the slice that was made for it here: `at` is when that was last found, `times` how often."""

    at: Time
    times: Count = 1


Counts = Mapping[str, int]
"""How many slices of a GPU, by size (`10gb`) or by place (`3g.20gb@4`, of which there is one)."""


class Wanted(Struct, frozen=True):
    """The slices that are wanted of a node; readers do not trust it further than its GPUs go.

    `gpus` are all slices of each GPU, by its UUID, those that pods hold included: an empty mapping means no slices, a
    GPU that is not named keeps the slices it has. `pods` and `failed` are by the UID of a waiting pod.
    """

    gpus: Mapping[str, Counts] = field(default_factory=dict)
    pods: Mapping[str, tuple[KeptSlice, ...]] = field(default_factory=dict)
    failed: Mapping[str, Failure] = field(default_factory=dict)


class _Annotation(Struct, frozen=True):
    """The value as it is written: a pod with one slice has an object, one with several a list of them."""

    version: Literal[1]
    gpus: dict[str, dict[str, Count]] = field(default_factory=dict)
    pods: dict[str, KeptSlice | list[KeptSlice]] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)


class _Version(Struct, frozen=True):
    version: object = None


_ANNOTATION = msgspec.json.Decoder(_Annotation)
_VERSION = msgspec.json.Decoder(_Version)
_ENCODER = msgspec.json.Encoder(order="sorted")


def encode(wanted: Wanted) -> str:
    """Return the value of the annotation, the same for equal wishes."""
    return _ENCODER.encode(
        {
            "version": 1,
            "gpus": wanted.gpus,
            "pods": {uid: kept[0] if len(kept) == 1 else kept for uid, kept in wanted.pods.items()},
            "failed": wanted.failed,
        }
    ).decode()


def bounded(wanted: Wanted) -> Wanted:
    """Return what is wanted without what the annotation has no room for, which nobody needs: see `LONGEST`."""
    latest = sorted(wanted.failed.items(), key=lambda each: (each[1].at, each[0]))[-MOST_FAILURES:]
    kept = replace(wanted, failed=dict(latest))
    if len(encode(kept)) <= LONGEST:
        return kept
    return replace(kept, pods={uid: tuple(replace(each, pod="") for each in kept.pods[uid]) for uid in kept.pods})


def decode(text: str) -> Wanted:
    """Return what the value of the annotation says; raises WantedError for anything but a value of version 1."""
    try:
        read = _ANNOTATION.decode(text)
        for uuid, slices in read.gpus.items():
            check_counts(uuid, slices)
            _check_places(uuid, slices)
        for each in read.pods.values():
            for kept in each if isinstance(each, list) else [each]:
                named_slice(kept.slice)
    except SliceError as error:
        raise WantedError(f"annotation {WANTED_SLICES}: {error}") from error
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise WantedError(f"annotation {WANTED_SLICES}: {_found(text) or error}; expected version 1 of it") from error
    pods = {uid: tuple(each) if isinstance(each, list) else (each,) for uid, each in read.pods.items()}
    return Wanted(read.gpus, {uid: kept for uid, kept in pods.items() if kept}, read.failed)


def check_counts(uuid: str, slices: Mapping[str, int]) -> None:
    """Raise SliceError where more slices are wanted of a GPU than any can have."""
    if len(slices) > MOST_SIZES:
        raise SliceError(f"{len(slices)} sizes of {uuid[:64]} found, {MOST_SIZES} at most are possible")
    if (total := sum(slices.values())) > MOST_SLICES:
        raise SliceError(f"{total} slices of {uuid[:64]} found, {MOST_SLICES} at most are possible")


def _check_places(uuid: str, slices: Mapping[str, int]) -> None:
    for name, count in slices.items():
        if named_slice(name).kind == "mig" and count != 1:
            raise SliceError(f"{count} slices {name} of {uuid} found, 1 expected: there is one such place")


def _found(text: str) -> str | None:
    """Return which other version was found, None where it is not the version that is wrong, or there is none."""
    try:
        version = _VERSION.decode(text).version
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    if version is None or version == 1:
        return None
    return f"version {str(version)[:32]!r} found: if gpushare wrote it, this gpushare is older, so update it"


class SliceRequest(Struct, frozen=True):
    """The slices of one kind that the annotations of a Node request."""

    gpus: Mapping[str, Counts] | None = field(default_factory=dict)
    """The requested slices, by the UUID of the GPU; a GPU without an entry keeps its slices.

    MIG instances are counted by place (`3g.20gb@4`), or by profile (`3g.20gb`) if people leave the place open.
    None stands for annotations that cannot be read: the slices requested before stay requested.
    """
    notices: tuple[str, ...] = ()
    """Warnings about the annotations, for people."""
    kind: Kind = "mps"
    """The kind of the slices."""
