"""Today's code decides what was recorded: extender, partitioner, chooser, and the cut of a node.

A tenth of the verdicts is compared; all of them with `GPUSHARE_VERDICTS=all`. A verdict that is to differ from now on
is recorded again, in a commit that says which differ and why: `python -m tests.verdicts.record --out` the file.
"""

import os
from collections.abc import Iterator

import pytest

from tests.verdicts.cases import KINDS, Verdict, verdict
from tests.verdicts.record import RECORDED, read

_EVERY = 1 if os.environ.get("GPUSHARE_VERDICTS") == "all" else 10
"""Of so many verdicts, one is compared."""

_SHOWN = 20
"""Differences that a failure repeats."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_are_those_that_were_recorded(kind: str) -> None:
    """Of each kind, whatever the inputs."""
    compared, different, lines = 0, 0, list[str]()
    for case, recorded in read(RECORDED):
        if case.kind != kind or case.number % _EVERY:
            continue
        compared += 1
        if (now := verdict(case)) != recorded:
            different += 1
            lines += [f"{case}", *(f"    {each}" for each in _differences(recorded, now))]
    assert compared
    told = "\n".join(lines[: 4 * _SHOWN])
    assert not different, (
        f"{different} of {compared} verdicts differ; python -m tests.verdicts.record shows each:\n{told}"
    )


def _differences(recorded: Verdict, now: Verdict) -> Iterator[str]:
    if recorded.asked != now.asked:
        yield "the generator makes another input of this seed: the verdicts say nothing until they are recorded again"
    else:
        yield from list(differing(recorded.decided, now.decided))[:_SHOWN]


def differing(recorded: object, now: object, where: str = "") -> Iterator[str]:
    """Yield each value of JSON that is another one now, with its place."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*recorded, *now)):
            yield from differing(recorded.get(key), now.get(key), f"{where}.{key}")
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for number, (one, other) in enumerate(zip(recorded, now, strict=True)):
            yield from differing(one, other, f"{where}[{number}]")
    elif recorded != now:
        yield f"{where.removeprefix('.')}: {recorded!r} recorded, {now!r} now"


def test_a_difference_is_told_with_its_place() -> None:
    """Down to the value that differs; what is there in one of the two only is None in the other."""
    recorded = {"bind": {"n1": {"gpus": ["a", "b"]}}, "score": {"n1": 3}}
    now = {"bind": {"n1": {"gpus": ["a", "c"]}}, "score": {}}
    assert list(differing(recorded, now)) == [
        "bind.n1.gpus[1]: 'b' recorded, 'c' now",
        "score.n1: 3 recorded, None now",
    ]
