"""Figures as a table, as JSON, and the difference of two runs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import MARKDOWN
from rich.table import Table

from benchmarks.figures import Figure, Summary

_NUMBERS = ("MEDIAN", "P99", "FLOOR", "RATIO", "OLD", "NEW", "CHANGE", "OLD RATIO", "NEW RATIO")
_SAME_MACHINE = ("processor", "cores", "kernel", "python", "libraries")


def figure_table(figures: Sequence[Figure]) -> Table:
    """Return the table of one run, or of several; docs/performance.md has the figures without their goals."""
    table = _table("FIGURE", "MEDIAN", "P99", "FLOOR", "RATIO", "", "GOAL", "MET")
    table.box = MARKDOWN
    for figure in figures:
        met = [figure.meets(goal) for goal in figure.goals]
        table.add_row(
            figure.name,
            _number(figure.measured.median),
            _number(figure.measured.p99),
            _number(figure.floor.median if figure.floor else None),
            _number(figure.ratio),
            figure.unit,
            "; ".join(map(str, figure.goals)),
            "" if not met else "yes" if all(met) else "NO",
        )
    return table


def findings(figures: Sequence[Figure], runs: int, loads: Sequence[float]) -> Iterator[str]:
    """Yield what belongs to the table: of how many runs it has medians, how busy the machine was, and missed goals.

    `loads` are those of the machine before and after each measure of each run (getloadavg(3), one minute).
    """
    what = "One run" if runs == 1 else f"Medians of {runs} runs"
    yield f"{what}, at loads of {min(loads):.2g} to {max(loads):.2g} on {os.cpu_count()} cores, this one's included."
    missed = [sentence for figure in figures for sentence in figure.missed()]
    yield f"Goals missed: {len(missed)} of {sum(len(figure.goals) for figure in figures)}" + (":" if missed else ".")
    yield from (f"- {sentence}" for sentence in missed)


def as_data(figures: Sequence[Figure], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run as plain data."""
    return {"machine": dict(machine), "figures": [figure.as_data() for figure in figures]}


def comparison_table(old: Mapping[str, Any], new: Mapping[str, Any]) -> Table:
    """Return the table of what changed between two runs as `as_data` wrote them down.

    The ratios to the floors can be compared even where the machines differ or were not equally busy.
    """
    before, after = _by_name(old), _by_name(new)
    table = _table("FIGURE", "OLD", "NEW", "CHANGE", "OLD RATIO", "NEW RATIO", "")
    for name in {**before, **after}:
        was, now = before.get(name), after.get(name)
        either = now or was
        assert either is not None  # noqa: S101 - the name comes from one of the two
        table.add_row(
            name,
            _number(was.measured.median if was else None),
            _number(now.measured.median if now else None),
            _change(was.measured, now.measured) if was and now else "gone" if was else "new",
            _number(was.ratio if was else None),
            _number(now.ratio if now else None),
            either.unit,
        )
    return table


def machine_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return in what the machines of two runs differ, a line each."""
    before, after = old["machine"], new["machine"]
    return [
        f"{fact}: {before.get(fact)} -> {after.get(fact)}"
        for fact in _SAME_MACHINE
        if before.get(fact) != after.get(fact)
    ]


def _table(*columns: str) -> Table:
    """Return an empty table without lines, where numbers are never broken."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column in _NUMBERS
        table.add_column(column, overflow="fold", justify="right" if number else "left", no_wrap=number)
    return table


def _by_name(run: Mapping[str, Any]) -> dict[str, Figure]:
    return {figure.name: figure for figure in map(Figure.from_data, run["figures"])}


def _change(old: Summary, new: Summary) -> str:
    return f"{100 * (new.median / old.median - 1):+.0f} %" if old.median else "" if not new.median else "from 0"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value == int(value) or abs(value) >= 1000:  # noqa: PLR2004 - four digits are enough
        return f"{value:,.0f}"
    return f"{value:.3g}"
