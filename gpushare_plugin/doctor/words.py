"""The report of an examination for people: a line for each part of the node, and the remedies below."""

import textwrap
from collections.abc import Iterator, Sequence

from gpushare_plugin.doctor.examination import DoctorReport
from gpushare_plugin.doctor.node.diagnosis import Judgement

MARKS: dict[Judgement, str] = {"right": "right", "wrong": "WRONG", "notLookedAt": "not looked at"}
"""How a judgement is spelled for people."""
_INDENT = " " * 4


def lines_of(report: DoctorReport, width: int | None = None) -> Iterator[str]:
    """Yield the lines of a report, broken at `width` columns; without a width no line is broken."""
    mark = max(map(len, MARKS.values()))
    for line in report.lines:
        yield from _wrapped(f"{MARKS[line.judgement]:{mark}}  {line.subject}: {line.found}", " " * (mark + 2), width)
    mistakes = [(line.subject, line.remedy) for line in report.lines if line.remedy]
    better = [(line.subject, line.improvement) for line in report.lines if line.improvement]
    yield from _numbered("What to do, in this order:", mistakes, width)
    yield from _numbered("What would give this node the first isolation of each list of the config:", better, width)
    yield ""
    yield f"{report.right} right, {report.wrong} wrong, {report.not_looked_at} not looked at"


def _numbered(title: str, instructions: Sequence[tuple[str, str]], width: int | None) -> Iterator[str]:
    """Yield instructions about parts of the node below a title, and what comes after them; nothing without any.

    An instruction about several parts is one item.
    """
    if not instructions:
        return
    yield ""
    yield title
    subjects: dict[str, dict[str, None]] = {}
    for subject, instruction in instructions:
        subjects.setdefault(instruction, {})[subject] = None
    for number, (instruction, named) in enumerate(subjects.items(), 1):
        sentence = f"{instruction[:1].upper()}{instruction[1:]}."
        yield from _wrapped(f"{number}. {', '.join(named)}: {sentence}", _INDENT, width)
    yield "Then run gpushare doctor again."


def _wrapped(line: str, indent: str, width: int | None) -> list[str]:
    if width is None:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
