"""The output of commands, with control sequences from outside escaped; and standard streams that cannot be written."""

import io
import locale
import os
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from gpushare_plugin.base.text import visible_json

if TYPE_CHECKING:
    from gpushare_plugin.observe.cluster.columns import Style

STANDARD_STREAMS = (0, 1, 2)
"""The descriptors of standard input, output and error."""


def open_missing_streams() -> None:
    """Point standard streams that are missing since the start of the process to /dev/null.

    Otherwise the next opened file or socket gets the descriptor of a standard stream, and a library writes to the file.
    """
    for descriptor in STANDARD_STREAMS:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `descriptor`
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.dup(0))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.dup(1), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.dup(2), "w")


def output_style() -> "Style":
    """Return the style of standard output: lines in a pipe have any length, and neither bold text nor bars."""
    from gpushare_plugin.observe.cluster.columns import Style  # noqa: PLC0415 - a daemon shows nothing

    # Standard output has been set to UTF-8; what a terminal shows is in the locale.
    utf8 = locale.getencoding().lower().replace("-", "") == "utf8"
    if not sys.stdout.isatty():
        return Style(utf8=utf8)
    return Style(shutil.get_terminal_size().columns, bold=not os.environ.get("NO_COLOR"), bars=utf8, utf8=utf8)


def write_utf8() -> None:
    """Write UTF-8 in any locale, like Kubernetes' own programs; bytes of a file's name that are no text are escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def show(lines: Iterable[str], style: "Style | None" = None, *, error: bool = False) -> None:
    """Print `lines`, to standard error with `error`; characters that would break a line are escaped."""
    from gpushare_plugin.observe.cluster.columns import Style  # noqa: PLC0415 - as above

    style = style or Style()
    click.echo("\n".join(map(style.shown, lines)), err=error)


def show_json(text: str) -> None:
    """Print JSON with invisible characters escaped."""
    click.echo(visible_json(text))


def warn(message: str) -> None:
    """Print a line to standard error; where the write fails, the result of the command still counts."""
    try:
        show([message], error=True)
    except OSError:
        _discard(2)


def exit_without_output(error: OSError) -> None:
    """End the process with status 1, because standard output cannot be written."""
    _discard(1)
    warn(f"gpushare: cannot write the output: {error.strerror}")
    sys.exit(1)


def _discard(descriptor: int) -> None:
    """Point a stream to /dev/null: the rest of the output must not fail again when the process ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
