"""How commands print: text of others never as control sequences. And standard streams that cannot be written."""

import io
import os
import shutil
import sys
from collections.abc import Iterable

import click

from gpushare_plugin.foundation.text import visible_json
from gpushare_plugin.inspect.cluster.columns import Style

STANDARD_STREAMS = (0, 1, 2)


def open_missing_streams() -> None:
    """Point standard streams that this process was started without to /dev/null.

    Otherwise the next file or socket to be opened gets the number of one of them, and a library writes into it.
    """
    for descriptor in STANDARD_STREAMS:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.dup(0))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.dup(1), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.dup(2), "w")


def output_style() -> Style:
    """Return how standard output is written: a pipe has lines as long as they have to be, and neither bold nor bars."""
    if not sys.stdout.isatty():
        return Style()
    bars = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return Style(shutil.get_terminal_size().columns, bold=not os.environ.get("NO_COLOR"), bars=bars)


def write_utf8() -> None:
    """Write UTF-8 in any locale, as Kubernetes' own programs do; what is no text in a file's name is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def show(lines: Iterable[str], style: Style | None = None, *, error: bool = False) -> None:
    """Print each of these lines as one; the text may be of others."""
    style = style or Style()
    click.echo("\n".join(map(style.shown, lines)), err=error)


def show_json(text: str) -> None:
    """Print JSON; its texts may be of others."""
    click.echo(visible_json(text))


def warn(message: str) -> None:
    """Print a line to standard error; if that cannot be written, the result of the command still counts."""
    try:
        show([message], error=True)
    except OSError:
        _discard(2)


def exit_without_output(error: OSError) -> None:
    """End with status 1 because standard output cannot be written."""
    _discard(1)
    warn(f"gpushare: cannot write the output: {error.strerror}")
    sys.exit(1)


def _discard(descriptor: int) -> None:
    """Point a stream to /dev/null, so that what is left of it does not fail again when the process ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
