"""The `gpushare` command as a child process that need not import anything: one that has done so forks it.

The imports take most of the time of a command that ends by itself, and tests run hundreds of them.
"""

import asyncio
import ctypes
import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path

import coverage

from gpushare_plugin.testing.nvml import LIBRARY_NAME

_FORKING = multiprocessing.get_context("forkserver")
_COMMANDS = "gpushare_plugin.cli.commands"
_FORKING.set_forkserver_preload(
    [
        *(f"{_COMMANDS}.cluster.{name}" for name in ("cleanup", "explain", "inspect")),
        *(f"{_COMMANDS}.config.{name}" for name in ("check_config", "schema")),
        *(f"{_COMMANDS}.{name}" for name in ("node.doctor", "node.list", "completion", "version")),
        __name__,
    ]
)

_READ_AT_THE_START = ("LD_PRELOAD", "PYTHON", "LC_", "LANG")
"""Variables that a program of Python, or its loader, reads only when it starts; one more is seen to in `_run`."""

_ENDING_BY_THEMSELVES = {"check-config", "completion", "doctor", "explain", "inspect", "list", "schema", "version"}


def can_fork(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a command does the same where it is forked: it is no daemon, and begins like any other."""
    ends = arguments[0] in _ENDING_BY_THEMSELVES or arguments[-1] == "--help"
    return ends and not any(name.startswith(_READ_AT_THE_START) for name in environment)


async def forked(arguments: Sequence[str], environment: Mapping[str, str], within: float) -> tuple[int, bytes, bytes]:
    """Run a command with these variables alone; return its exit status, and what it printed to output and errors."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        printed = [Path(folder, name) for name in ("output", "errors")]
        with _unmeasured():
            ensure_running()
        child = _FORKING.Process(target=_run, args=(arguments, environment, Path.cwd(), printed))
        child.start()
        try:
            await _ended(child, within)
        finally:
            if child.exitcode is None:
                child.kill()
            child.join()
        assert child.exitcode is not None
        output, errors = (file.read_bytes() for file in printed)
        return child.exitcode, output, errors


async def _ended(child: BaseProcess, within: float) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(child.sentinel, ended.set)
    try:
        async with asyncio.timeout(within):
            await ended.wait()
    finally:
        loop.remove_reader(child.sentinel)


@contextmanager
def _unmeasured() -> Iterator[None]:
    """Have coverage not measure the program that forks, and numpy start no threads in it."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("COVERAGE_"):
            del os.environ[name]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(arguments: Sequence[str], environment: Mapping[str, str], folder: Path, printed: Sequence[Path]) -> None:
    """Be the command, as `python -m gpushare_plugin` is."""
    for number, file in enumerate(printed, 1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    for place in filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")):
        # The loader has read the variable for the program that forks. A library that is loaded is found by its soname.
        with suppress(OSError):
            ctypes.CDLL(str(Path(place, LIBRARY_NAME)))
    os.chdir(folder)
    program = importlib.import_module("gpushare_plugin.__main__")
    sys.argv = [program.__file__ or "", *arguments]
    measuring = coverage.process_startup()
    try:
        program.main()
    finally:
        if measuring is not None:
            measuring.stop()
            measuring.save()
