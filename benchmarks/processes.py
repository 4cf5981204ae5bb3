"""A process that is measured: started, asked of the kernel what it uses, and ended."""

import asyncio
import contextlib
import ctypes
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_FIELD = re.compile(r"^(\w+):\s+(\d+)", re.MULTILINE)
_LIBC = ctypes.CDLL(None, use_errno=True)
_PATIENCE = 180.0
"""Seconds a process has for what is waited for."""

_NOT_INHERITED = {"GRPC_VERBOSITY", "PYTHONDONTWRITEBYTECODE", "COVERAGE_PROCESS_CONFIG"}
"""What this process has chosen for gRPC; byte code is there, as in an image, once a process has left it; and nothing
else measures a process whose time is measured."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory in MiB: all, with shared pages divided among their users, and without any shared page."""

    resident: float
    proportional: float
    own: float


class MeasuredProcess:
    """A Python process; what it prints is in the file `output`."""

    def __init__(self, process: asyncio.subprocess.Process, output: Path) -> None:
        """Measure `process`."""
        self.process = process
        self.output = output
        self._proc = Path("/proc", str(process.pid))

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its threads so far, those that have ended included (clock_getcpuclockid(3))."""
        clock = ctypes.c_int()
        if error := _LIBC.clock_getcpuclockid(self.process.pid, ctypes.byref(clock)):
            raise OSError(error, os.strerror(error))
        return time.clock_gettime(clock.value)

    def wakeups(self) -> dict[str, int]:
        """Return how often each thread has slept and woken so far: its voluntary context switches, by thread ID."""
        found = {}
        for status in self._proc.glob("task/*/status"):
            with contextlib.suppress(OSError):  # the thread has ended meanwhile
                fields = dict(_FIELD.findall(status.read_text()))
                found[status.parent.name] = int(fields["voluntary_ctxt_switches"])
        return found

    def memory(self) -> Memory:
        """Return its memory now."""
        fields = {name: int(kib) / 1024 for name, kib in _FIELD.findall((self._proc / "smaps_rollup").read_text())}
        return Memory(fields["Rss"], fields["Pss"], fields["Private_Clean"] + fields["Private_Dirty"])

    async def outlives(self, work: Awaitable[T]) -> T:
        """Return what `work` returns; raises RuntimeError, with what it printed, if the process ends before."""
        working = asyncio.ensure_future(work)
        ending = asyncio.create_task(self.process.wait())
        try:
            await asyncio.wait([working, ending], timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                status = "still running" if not ending.done() else f"exit status {ending.result()}"
                raise RuntimeError(f"process {self.process.pid}, {status}: {self.output.read_text()[-2000:]}")
            return working.result()
        finally:
            working.cancel()
            ending.cancel()


@contextlib.asynccontextmanager
async def python(
    *arguments: str | Path, output: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[MeasuredProcess]:
    """Run Python with these arguments as long as the context lasts."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    with output.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *map(str, arguments)),
            env={**inherited, **(environment or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    try:
        yield MeasuredProcess(process, output)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _PATIENCE)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
