"""The wanted slices of a node, as the value of the annotation `gpushare/wanted-slices`.

`gpushare partition` writes the annotation, and the daemon of the node follows the annotation. The annotation is the
whole memory of `gpushare partition`: the slices kept for waiting pods, and the pods that did not take their slices.
`docs/partitioning.md` describes the format.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct, field, replace
from gpushare_plugin.slices.slice import SliceError, SliceKind, named_slice

WANTED_SLICES = "gpushare/wanted-slices"
"""The annotation of the Node with the wanted slices, see `Wanted`."""

MOST_SLICES = 1024
"""The most slices accepted for one GPU, more than any GPU has."""

MOST_SIZES = 64
"""The most sizes or places of slices accepted for one GPU: MPS serves 48 slices, whatever their sizes."""

MOST_FAILURES = 256
"""The most failures remembered of a node; the latest failures are remembered."""

LONGEST = 128 * 1024
"""The most bytes of the annotation with the names of pods; a longer annotation is written without the names.

All annotations of an object share 256 KiB.
"""

Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""An aware time."""
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_SLICES)]
"""A number of slices, or of failures."""


class WantedError(GpushareError):
    """The value of the annotation differs from the expected format."""


class KeptSlice(Struct, frozen=True, gc=False):
    """A slice kept for a waiting pod."""

    gpu: str
    """The UUID of the GPU."""
    slice: str
    """The slice, by size (`10gb`) or by place (`3g.20gb@4`)."""
    since: Time
    """The time of the decision, in whole seconds."""
    pod: str = ""
    """The pod, as `namespace/name`, for people; empty if the annotation has no room for the names of pods."""


class Failure(Struct, frozen=True):
    """The failure of a waiting pod to take the slices kept for the pod on a node."""

    at: Time
    """The time of the last failure."""
    times: Count = 1
    """The number of failures so far."""


SliceCounts = Mapping[str, int]
"""The number of slices of a GPU, by size (`10gb`) or by place (`3g.20gb@4`, always 1)."""


class Wanted(Struct, frozen=True):
    """The wanted slices of a node; readers make sure that the GPUs have room for the slices."""

    gpus: Mapping[str, SliceCounts] = field(default_factory=dict)
    """All wanted slices by the UUID of the GPU, with the slices that pods hold.

    A GPU with an empty mapping is to have no slices; a GPU without an entry keeps its slices.
    """
    pods: Mapping[str, tuple[KeptSlice, ...]] = field(default_factory=dict)
    """The kept slices, by the UID of the waiting pod."""
    failed: Mapping[str, Failure] = field(default_factory=dict)
    """The failures, by the UID of the waiting pod."""


class _Annotation(Struct, frozen=True):
    """The value of the annotation as JSON."""

    version: Literal[1]
    """The version of the format."""
    gpus: dict[str, dict[str, Count]] = field(default_factory=dict)
    """As in `Wanted`."""
    pods: dict[str, KeptSlice | list[KeptSlice]] = field(default_factory=dict)
    """As in `Wanted`; a pod with one kept slice has an object, a pod with several has a list."""
    failed: dict[str, Failure] = field(default_factory=dict)
    """As in `Wanted`."""


class _Version(Struct, frozen=True):
    """The version in a value of any version."""

    version: object = None
    """The version; None without a version."""


_DECODER = msgspec.json.Decoder(_Annotation)
_VERSION_DECODER = msgspec.json.Decoder(_Version)
_ENCODER = msgspec.json.Encoder(order="sorted")


def encode(wanted: Wanted) -> str:
    """Return the value of the annotation, the same for equal wanted slices."""
    return _ENCODER.encode(
        {
            "version": 1,
            "gpus": wanted.gpus,
            "pods": {uid: kept[0] if len(kept) == 1 else kept for uid, kept in wanted.pods.items()},
            "failed": wanted.failed,
        }
    ).decode()


def bounded(wanted: Wanted) -> Wanted:
    """Return `wanted` with the latest MOST_FAILURES failures and, beyond LONGEST bytes, without the names of pods."""
    latest = sorted(wanted.failed.items(), key=lambda each: (each[1].at, each[0]))[-MOST_FAILURES:]
    kept = replace(wanted, failed=dict(latest))
    if len(encode(kept)) <= LONGEST:
        return kept
    return replace(kept, pods={uid: tuple(replace(each, pod="") for each in kept.pods[uid]) for uid in kept.pods})


def decode(text: str) -> Wanted:
    """Return the wanted slices in the value of the annotation; raises WantedError for anything but version 1."""
    try:
        read = _DECODER.decode(text)
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
    """Raise SliceError for more slices of a GPU than any GPU can have."""
    if len(slices) > MOST_SIZES:
        raise SliceError(f"{len(slices)} sizes of {uuid[:64]} found, {MOST_SIZES} at most are possible")
    if (total := sum(slices.values())) > MOST_SLICES:
        raise SliceError(f"{total} slices of {uuid[:64]} found, {MOST_SLICES} at most are possible")


def _check_places(uuid: str, slices: Mapping[str, int]) -> None:
    """Raise SliceError for several slices at one place, and for a name that is neither a size nor a place."""
    for name, count in slices.items():
        if named_slice(name).kind == "mig" and count != 1:
            raise SliceError(f"{count} slices {name} of {uuid} found, 1 expected: there is one such place")


def _found(text: str) -> str | None:
    """Return a message about a version other than 1; None for version 1, and without a version."""
    try:
        version = _VERSION_DECODER.decode(text).version
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    if version is None or version == 1:
        return None
    return f"version {str(version)[:32]!r} found: if gpushare wrote it, this gpushare is older, so update it"


class SliceRequest(Struct, frozen=True):
    """The slices of one kind that the annotations of a Node request: `gpushare/wanted-slices`, or those of nos."""

    gpus: Mapping[str, SliceCounts] | None = field(default_factory=dict)
    """The requested slices, by the UUID of the GPU; a GPU without an entry keeps its slices.

    MIG instances are counted by place (`3g.20gb@4`), or by profile (`3g.20gb`) if people leave the place open.
    None stands for annotations that cannot be read: the slices requested before stay requested.
    """
    notices: tuple[str, ...] = ()
    """Warnings about the annotations, for people."""
    kind: SliceKind = "mps"
    """The kind of the slices."""
