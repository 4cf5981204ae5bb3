"""`python -m benchmarks run` and `compare`; see `make bench` and docs/performance.md."""

import asyncio
import json
import os
import time
from collections import defaultdict
from itertools import product
from pathlib import Path

# gRPC would print, amid the table, that servers went away.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click
from rich.console import Console

from benchmarks.effort import Effort
from benchmarks.figures import Figure
from benchmarks.machine import load, machine
from benchmarks.registry import MEASURES
from benchmarks.report import as_data, comparison_table, figure_table, findings, machine_changes

_WIDTH = 170
"""Columns where no terminal says how many there are."""

_A_PATH = click.Path(path_type=Path)


@click.group()
def commands() -> None:
    """Measure the daemon, and compare two such runs."""


@commands.command()
@click.option("--only", type=click.Choice(list(MEASURES)), multiple=True, help="Measure this; all without it.")
@click.option("--json", "file", type=_A_PATH, default=Path("bench.json"), show_default=True, help="Where to write.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Medians of so many runs are told.")
@click.option("--share", type=click.FloatRange(0, 1), default=1.0, help="Share of the full repetitions and times.")
def run(only: tuple[str, ...], file: Path, runs: int, share: float) -> None:
    """Measure, print a table and write JSON."""
    console = _console()
    facts, found, loads = machine(), defaultdict[str, list[Figure]](list), [load()]
    # One run after another, and not one measure: what else the machine does is then in none of them alone.
    for _, name in product(range(runs), only or MEASURES):
        began = time.perf_counter()
        for figure in asyncio.run(_measured(name, Effort(share))):
            found[figure.name].append(figure)
        loads.append(load())
        click.echo(f"{name}: {time.perf_counter() - began:.0f} s", err=True)
    figures = list(map(Figure.of_runs, found.values()))
    file.write_text(json.dumps(as_data(figures, {**facts, "runs": runs, "loads": loads}), indent=2) + "\n")
    console.print(figure_table(figures))
    for line in findings(figures, runs, loads):
        console.print(line, highlight=False, soft_wrap=True)
    for figure in figures:
        if figure.note:
            console.print(f"{figure.name}: {figure.note}", highlight=False)


@commands.command()
@click.argument("old", type=_A_PATH)
@click.argument("new", type=_A_PATH)
def compare(old: Path, new: Path) -> None:
    """Print what changed from the run in file OLD to the one in NEW."""
    runs = json.loads(old.read_text()), json.loads(new.read_text())
    console = _console()
    console.print(comparison_table(*runs))
    for line in machine_changes(*runs):
        console.print(f"another machine: {line}", highlight=False)


async def _measured(name: str, effort: Effort) -> list[Figure]:
    return await MEASURES[name](effort)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


if __name__ == "__main__":
    commands(prog_name="benchmarks")
