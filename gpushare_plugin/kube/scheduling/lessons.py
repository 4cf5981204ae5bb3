"""What an extender with the policy `packing` learned last, as an annotation of the Lease of the extenders."""

from typing import Annotated

import msgspec

from gpushare_plugin.packing.pod_kind import WHOLE
from gpushare_plugin.packing.seen import Lesson

LESSON = "gpushare/packing"
"""The annotation of the Lease: the pods that the leader learned from, by size and by accepted models."""

LONGEST = 16 * 1024
"""The most characters that are read of the annotation."""
_MOST_GROUPS = 16
"""The most groups of pods with the same accepted models in the annotation: those with the largest demand."""
_MOST_MODELS = 32
_LONGEST_MODEL = 64

_Weight = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Model = Annotated[str, msgspec.Meta(max_length=_LONGEST_MODEL)]


class _GroupDemand(msgspec.Struct, frozen=True):
    models: Annotated[tuple[_Model, ...], msgspec.Meta(max_length=_MOST_MODELS)]
    percent: _Weight


class _WrittenLesson(msgspec.Struct, frozen=True):
    shares: dict[Annotated[int, msgspec.Meta(ge=1, le=WHOLE)], _Weight] = {}
    demand: Annotated[tuple[_GroupDemand, ...], msgspec.Meta(max_length=_MOST_GROUPS)] = ()
    several: bool = False


_DECODER = msgspec.json.Decoder(_WrittenLesson)


def written(lesson: Lesson) -> str:
    """Return a lesson as the text of the annotation."""
    shares = {size: round(weight, 2) for size, weight in sorted(lesson.shares.items())}
    groups = sorted(lesson.demand.items(), key=lambda group: (-group[1], sorted(group[0])))
    demand = tuple(
        _GroupDemand(tuple(model[:_LONGEST_MODEL] for model in sorted(models)), round(percent, 2))
        for models, percent in groups
        if len(models) <= _MOST_MODELS
    )
    return msgspec.json.encode(_WrittenLesson(shares, demand[:_MOST_GROUPS], lesson.several)).decode()


def read(text: str) -> Lesson | None:
    """Return the lesson in the text of the annotation; None for a text that is no lesson."""
    try:
        found = _DECODER.decode(text[:LONGEST])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return Lesson(found.shares, {frozenset(each.models): each.percent for each in found.demand}, found.several)
