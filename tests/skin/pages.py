"""Pages of metrics, with what depends on the run or on the machine masked."""

import re
from collections.abc import Iterator

from tests.process.daemon import answer
from tests.skin.golden import masked

_OF_THE_RUN = re.compile(r"_(total|count|sum|bucket|seconds|created)$")
"""Names of what counts or lasts end so: its values are masked, and those of its labels but for reasons and bounds."""
_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?P<labels>\{.*\})? (?P<value>\S+)$")
_OF_THE_MACHINE = re.compile(r"^(# (HELP|TYPE) )?(process_|python_)")
_MASKED_LABEL = re.compile(r'(?<![\w])(?!le=|reason=)(\w+)="(?:[^"\\]|\\.)*"')


async def page(port: int, /, **places: object) -> str:
    """Return what is served at /metrics: families, labels, buckets, and the values that are the same in each run."""
    status, text = await answer(port, "/metrics")
    assert status == 200, text
    return masked("".join(f"{line}\n" for line in _lines(text)), **places)


def _lines(text: str) -> Iterator[str]:
    """Yield each line once, the samples of a family in the order of their labels but for bounds."""
    samples: dict[str, None] = {}
    for line in [*text.splitlines(), "# end"]:
        if _OF_THE_MACHINE.match(line):
            continue
        if line.startswith("#"):
            yield from sorted(samples, key=_place)
            samples = {}
            if line != "# end":
                yield line
        else:
            samples[_masked(line)] = None


def _place(sample: str) -> str:
    return re.sub(r'le="[^"]*"', "", sample)


def _masked(line: str) -> str:
    sample = _SAMPLE.match(line)
    if sample is None or not _OF_THE_RUN.search(sample["name"]):
        return line
    labels = _MASKED_LABEL.sub(r'\1="<any>"', sample["labels"] or "")
    return f"{sample['name']}{labels} <value>"
