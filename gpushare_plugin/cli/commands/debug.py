"""`gpushare debug`: has a running daemon log more, or write its stacks."""

import os
import signal
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import click

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.mounts import sees_our_files
from gpushare_plugin.base.signals.dispositions import MORE_LOG, STACKS
from gpushare_plugin.cli.main import DAEMONS

SIGNALS: Mapping[str, signal.Signals] = {"log": MORE_LOG, "stacks": STACKS}
"""The signal for each argument of the command."""


@click.command("debug", short_help="Have a running daemon log more, or write its stacks.")
@click.argument("what", type=click.Choice(tuple(SIGNALS)))
@click.option(
    "--pid",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    help="Process ID of the daemon. Default: the only daemon in this container.",
)
def command(what: str, pid: int | None) -> None:
    """Have a running daemon log more, or log where each thread and task is.

    A second `log` returns to --log-level. Stacks have no values.

    Run the command in the container of the daemon, with kubectl exec.
    """
    found = dict(_daemons())
    if pid is None:
        pid = _only(found)
    elif pid not in found:
        raise GpushareError(f"process {pid} is no daemon of gpushare in this container; expected {_told(found)}")
    try:
        os.kill(pid, SIGNALS[what])
    except OSError as error:
        raise GpushareError(f"{SIGNALS[what].name} cannot be sent to process {pid}: {error.strerror}") from error
    click.echo(f"{SIGNALS[what].name} sent to gpushare {found[pid]}, process {pid}; see its log")


def _daemons() -> Iterator[tuple[int, str]]:
    """Yield process and command of each daemon of this container; a pod with hostPID shows other processes, too."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and sees_our_files(pid := int(entry.name)):
            try:
                arguments = (entry / "cmdline").read_text(errors="replace").split("\0")
            except OSError:  # the process has ended meanwhile
                continue
            for program, name in pairwise(arguments):
                # A script is named after its interpreter, and a module after `-m`.
                if Path(program).name in {"gpushare", "gpushare_plugin"} and name in DAEMONS:
                    yield pid, name


def _only(found: Mapping[int, str]) -> int:
    if len(found) == 1:
        return next(iter(found))
    if found:
        raise GpushareError(f"several daemons of gpushare run here: choose one with --pid, of {_told(found)}")
    raise GpushareError(
        "no daemon of gpushare runs in this container, or it belongs to another user; run the command in the container "
        "of a daemon: kubectl exec POD -- gpushare debug …"
    )


def _told(found: Mapping[int, str]) -> str:
    return ", ".join(f"{pid} (gpushare {name})" for pid, name in sorted(found.items())) or "one, and none runs here"
