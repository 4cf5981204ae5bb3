"""Whether new pods can get GPUs of the node: the Node condition `GpuSharingReady`."""

from collections.abc import Mapping, Sequence
from typing import Literal

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of, visible
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.snapshot import Snapshot

_MOST = 4
"""The most GPUs, resources or problems named in a message."""


class Readiness(Struct, frozen=True):
    """The content of the Node condition."""

    status: Literal["True", "False", "Unknown"]
    """The status of the condition."""
    reason: str
    """The reason, a word in CamelCase."""
    message: str
    """The message, for people."""


STARTING = Readiness("Unknown", "Starting", "it is not known yet which units pods hold")
"""The condition until the units held by pods are known."""
NO_GPU = Readiness("False", "NoGpu", "no GPU of this node has answered yet")
"""The condition until a GPU of the node has answered."""
NO_SLICES_YET = Readiness(
    "True", "NoSlicesYet", "slices are made as pods request them, and no pod has requested one yet"
)
"""The condition of a node that makes slices on request, before the first request."""


def readiness(snapshot: Snapshot, missing: Sequence[str], complaints: Sequence[str]) -> Readiness:
    """Return whether new pods can get GPUs of a node served by the daemon.

    `missing` has the resources that are not registered with the kubelet, in words; `complaints` says what is wrong with
    the daemon. A rejected config changes nothing, because the previous config stays in effect.
    """
    if complaints:
        return Readiness("Unknown", "DaemonFailing", _some(complaints))
    gpus = {uuid: gpu for resource in snapshot.resources for uuid, gpu in resource.gpus.items()}
    unmade = _without_slices(snapshot, gpus)
    if not (gpus or unmade):
        return Readiness("False", "NothingOffered", "the config and the GPUs of this node make no units")
    if missing:
        return Readiness("False", "NotRegistered", _some(missing))
    unusable = {uuid: reason for uuid, reason in snapshot.excluded.items() if uuid in gpus}
    unusable |= {uuid: reason for uuid, reason in snapshot.reasons.items() if uuid in unmade}
    candidates = {**gpus, **unmade}
    if unusable.keys() == candidates.keys():
        reason = "MpsNotServing" if unusable.keys() <= snapshot.unserved.keys() else "NoUsableGpu"
        return Readiness("False", reason, f"no GPU can be allocated: {_reasons(unusable, candidates)}")
    return _ready(unusable, candidates) if gpus else NO_SLICES_YET


def _ready(unusable: Mapping[str, str], candidates: Mapping[str, Gpu]) -> Readiness:
    usable = f"{len(candidates) - len(unusable)} of {len(candidates)} GPUs can be allocated"
    if unusable:
        return Readiness("True", "SomeGpusUnusable", f"{usable}; {_reasons(unusable, candidates)}")
    return Readiness("True", "GpusUsable", usable)


def _without_slices(snapshot: Snapshot, offered: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """Return the cards that are divided into slices on request and have no slice yet, by UUID."""
    if snapshot.partitioning is None:
        return {}
    divided = {gpu.card for gpu in offered.values()} | offered.keys()
    return {card.uuid: card for card in snapshot.inventory.cards if card.uuid not in divided}


def _reasons(unusable: Mapping[str, str], gpus: Mapping[str, Gpu]) -> str:
    return _some([f"{gpus[uuid].identity}: {unusable[uuid]}" for uuid in sorted(unusable)])


def _some(words: Sequence[str]) -> str:
    return visible(some_of(words, _MOST))
