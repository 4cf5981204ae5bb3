"""Which slices the annotations of a Node want of its GPUs: ours, and those of nos that people write by hand; pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from gpushare_plugin.config.spelling import shown
from gpushare_plugin.foundation.text import some_of
from gpushare_plugin.model.gpu import Inventory, gpu_identity
from gpushare_plugin.model.partition.request import SliceRequest
from gpushare_plugin.model.slices.slice import Kind, SliceError, named_slice, slice_of
from gpushare_plugin.model.slices.wanted import MOST_SLICES, WANTED_SLICES, Counts, WantedError, check_counts, decode

NOS_PREFIX = "nos.nebuly.com/spec-gpu-"
"""Annotation of nos, followed by the index of a GPU and a size, such as 0-10gb; its value is how many are wanted."""

_NOS_KEY = re.compile(r"(?P<index>[0-9]{1,4})-(?P<size>.+)", re.ASCII)
_RESOURCES: Mapping[Kind, str] = {"mps": "nvidia.com/gpu-", "mig": "nvidia.com/mig-"}
_EXPECTED: Mapping[Kind, str] = {"mps": "size such as 10gb", "mig": "profile such as 3g.20gb"}
_MOST_NAMES = 10
"""Names that a warning repeats: there may be thousands."""
_MOST_NOTICES = 20
"""Warnings of all annotations together."""


def requested_slices(annotations: Mapping[str, str], inventory: Inventory, kind: Kind = "mps") -> SliceRequest:
    """Return what a Node's annotations want of GPUs that are divided in this way; ours counts where both name a GPU.

    What is wrong with the slices of one GPU concerns no other.
    """
    try:
        ours = decode(annotations[WANTED_SLICES]).gpus if WANTED_SLICES in annotations else {}
    except WantedError as error:
        return SliceRequest(None, (f"{error}; the GPUs stay partitioned as they are",), kind)
    notices: list[str] = []
    sized: dict[str, Counts] = {}
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


def _of_nos(annotations: Mapping[str, str], inventory: Inventory, kind: Kind, notices: list[str]) -> dict[str, Counts]:
    """Return what the annotations of nos want, by UUID; a GPU with one that makes no sense is left out."""
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


def _possible(by_hand: Mapping[str, Counts], notices: list[str]) -> dict[str, Counts]:
    """Return what annotations of nos want but of GPUs that cannot have as much."""
    found: dict[str, Counts] = {}
    for uuid, counts in by_hand.items():
        try:
            check_counts(uuid, counts)
            found[uuid] = counts
        except SliceError as error:
            notices.append(f"annotations {NOS_PREFIX}*: {error}; this GPU stays partitioned as it is")
    return found


def _few(notices: Sequence[str]) -> Sequence[str]:
    """Return the first notices, and how many more there are."""
    if (more := len(notices) - _MOST_NOTICES) <= 0:
        return notices
    return [*notices[:_MOST_NOTICES], f"{more:,} more annotations, or GPUs in them, make no sense"]


def _with_prefix(annotations: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return sorted((key, value) for key, value in annotations.items() if key.startswith(NOS_PREFIX))


def _some(names: Iterable[str]) -> str:
    return some_of(sorted(names), _MOST_NAMES, shown)
