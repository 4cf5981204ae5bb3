"""Pages of metrics, with the values that depend on the run or on the machine masked."""

import re

from tests.process.daemon import answer
from tests.skin.golden import masked

_OF_THE_RUN = re.compile(r"_(total|count|sum|bucket|seconds|created)$")
_SAMPLE = re.compile(r"^(?P<series>(?P<name>[A-Za-z_:][\w:]*)(\{.*\})?) (?P<value>\S+)$")
_OF_THE_MACHINE = re.compile(r"^(# (HELP|TYPE) )?(process_|python_)")


async def page(port: int, /, **places: object) -> str:
    """Return what is served at /metrics: families, labels, buckets, and the values that are the same in each run."""
    status, text = await answer(port, "/metrics")
    assert status == 200, text
    kept = (line for line in text.splitlines() if not _OF_THE_MACHINE.match(line))
    return masked("".join(f"{_masked(line)}\n" for line in kept), **places)


def _masked(line: str) -> str:
    sample = _SAMPLE.match(line)
    if line.startswith("#") or sample is None or not _OF_THE_RUN.search(sample["name"]):
        return line
    return f"{sample['series']} <value>"
