"""The report of an examination for people: a line for each part of the node, and the remedies below."""

import textwrap
from collections.abc import Iterator

from gpushare_plugin.doctor.examination import DoctorReport
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, Judgement

MARKS: dict[Judgement, str] = {"right": "right", "wrong": "WRONG", "notLookedAt": "not looked at"}
"""How a judgement is spelled for people."""
_INDENT = " " * 4


def lines_of(report: DoctorReport, width: int | None = None) -> Iterator[str]:
    """Yield the lines of a report, broken at `width` columns; without a width no line is broken."""
    mark = max(map(len, MARKS.values()))
    for line in report.lines:
        yield from _wrapped(f"{MARKS[line.judgement]:{mark}}  {line.subject}: {line.found}", " " * (mark + 2), width)
    mistakes = [line for line in report.lines if line.judgement == "wrong"]
    if mistakes:
        yield ""
        yield "What to do, in this order:"
    for number, line in enumerate(mistakes, 1):
        yield from _wrapped(f"{number}. {line.subject}: {_remedy(line)}", _INDENT, width)
    if mistakes:
        yield "Then run gpushare doctor again."
    yield ""
    yield f"{report.right} right, {report.wrong} wrong, {report.not_looked_at} not looked at"


def _remedy(line: Diagnosis) -> str:
    remedy = line.remedy or ""
    return f"{remedy[:1].upper()}{remedy[1:]}."


def _wrapped(line: str, indent: str, width: int | None) -> list[str]:
    if width is None:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
