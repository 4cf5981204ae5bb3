"""The slices wanted by annotations of a Node: by gpushare's annotation, and by nos annotations from people; pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.schema.spelling import shown
from gpushare_plugin.core.gpu import Inventory, gpu_identity
from gpushare_plugin.slices.slice import SliceError, SliceKind, named_slice, slice_of
from gpushare_plugin.slices.wanted import (
    MOST_SLICES,
    WANTED_SLICES,
    SliceCounts,
    SliceRequest,
    WantedError,
    check_counts,
    decode,
)

NOS_PREFIX = "nos.nebuly.com/spec-gpu-"
"""Prefix of nos annotations, followed by the index of a GPU and a size, for example 0-10gb.

The value of the annotation is the number of wanted slices.
"""

_NOS_KEY = re.compile(r"(?P<index>[0-9]{1,4})-(?P<size>.+)", re.ASCII)
_RESOURCES: Mapping[SliceKind, str] = {"mps": "nvidia.com/gpu-", "mig": "nvidia.com/mig-"}
_EXPECTED: Mapping[SliceKind, str] = {"mps": "size such as 10gb", "mig": "profile such as 3g.20gb"}
_MOST_NAMES = 10
"""Largest number of names in a warning: a list may have thousands."""
_MOST_NOTICES = 20
"""Largest number of warnings on all annotations together."""


def requested_slices(annotations: Mapping[str, str], inventory: Inventory, kind: SliceKind = "mps") -> SliceRequest:
    """Return the slices of this kind wanted by a Node's annotations; gpushare's annotation wins if both name a GPU.

    A mistake in the slices of one GPU does not affect the remaining GPUs.
    """
    try:
        ours = decode(annotations[WANTED_SLICES]).gpus if WANTED_SLICES in annotations else {}
    except WantedError as error:
        return SliceRequest(None, (f"{error}; the GPUs stay partitioned as they are",), kind)
    notices: list[str] = []
    sized: dict[str, SliceCounts] = {}
    for uuid, counts in ours.items():
        try:
            for name in counts:
                named_slice(name, kind)
            sized[uuid] = counts
        except SliceError as error:
            notices.append(f"annotation {WANTED_SLICES}: {uuid}: {error}; this GPU stays partitioned as it is")
    known = {gpu.uuid for gpu in inventory.cards} | {gpu.uuid for gpu in inventory.failed}
    if None not in known and (unknown := [uuid for uuid in ours if uuid not in known]):
        notices.append(f"annotation {WANTED_SLICES} names GPUs that this node does not have: {_some(unknown)}")
    by_hand = _possible(_of_nos(annotations, inventory, kind, notices), notices)
    gpus = {**{uuid: by_hand[uuid] for uuid in by_hand if uuid not in ours}, **sized}
    return SliceRequest(gpus, tuple(_few(notices)), kind)


def _of_nos(
    annotations: Mapping[str, str], inventory: Inventory, kind: SliceKind, notices: list[str]
) -> dict[str, SliceCounts]:
    """Return the slices wanted by nos annotations, by UUID, without GPUs with a bad annotation, and add notices."""
    uuids = {str(failed.index): failed.uuid for failed in inventory.failed}
    uuids |= {str(gpu.index): gpu.uuid for gpu in inventory.cards}
    found: dict[str, dict[str, int]] = {}
    wrong: set[str] = set()
    for key, value in _with_prefix(annotations):
        match = _NOS_KEY.fullmatch(key.removeprefix(NOS_PREFIX))
        uuid = uuids.get(match["index"]) if match else None
        count = int(value) if re.fullmatch(r"[0-9]{1,4}", value, re.ASCII) else None
        meant = slice_of(f"{_RESOURCES[kind]}{match['size']}") if match else None
        if uuid and meant and count is not None and count <= MOST_SLICES:
            slices = found.setdefault(uuid, {})
            if count:
                slices[meant.name] = count
            continue
        wrong.add(uuid or "")
        stays = f"stays partitioned as it is, or as {WANTED_SLICES} wants"
        follows = f"{gpu_identity(match['index'], uuid)} {stays}" if match and uuid else "the annotation is ignored"
        notices.append(
            f"annotation {shown(key)}: {shown(value)} found, expected {NOS_PREFIX}<index of a GPU>-<"
            f"{_EXPECTED[kind]}>, and a number of slices from 0 to {MOST_SLICES}; {follows}"
        )
    return {uuid: slices for uuid, slices in found.items() if uuid not in wrong}


def _possible(by_hand: Mapping[str, SliceCounts], notices: list[str]) -> dict[str, SliceCounts]:
    """Return the slices wanted by nos annotations, without GPUs with too many slices, and add notices."""
    found: dict[str, SliceCounts] = {}
    for uuid, counts in by_hand.items():
        try:
            check_counts(uuid, counts)
            found[uuid] = counts
        except SliceError as error:
            notices.append(f"annotations {NOS_PREFIX}*: {error}; this GPU stays partitioned as it is")
    return found


def _few(notices: Sequence[str]) -> Sequence[str]:
    """Return the first notices, followed by the number of further notices."""
    if (more := len(notices) - _MOST_NOTICES) <= 0:
        return notices
    return [*notices[:_MOST_NOTICES], f"{more:,} more annotations, or GPUs in them, make no sense"]


def _with_prefix(annotations: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return sorted((key, value) for key, value in annotations.items() if key.startswith(NOS_PREFIX))


def _some(names: Iterable[str]) -> str:
    return some_of(sorted(names), _MOST_NAMES, shown)
