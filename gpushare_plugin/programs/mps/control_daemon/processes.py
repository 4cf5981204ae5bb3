"""The processes of MPS: found by what the kernel knows of them, and ended.

Only newer control daemons write their process number into the pipe directory, and pods can write there, too. So a
process is known by its own command line and environment, and by what the kernel knows of it.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from gpushare_plugin.foundation.structs import Struct

CONTROL_PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"

CONTROL_SOCKET = "control"
"""Where the control daemon listens, in its pipe directory; root has another one beside it."""

_PROC = Path("/proc")
_LOOK_EVERY = 0.02
_LISTENING = 0x10000
"""The flag of a socket that takes connections (__SO_ACCEPTCON in the kernel)."""


class MpsProcess(Struct, frozen=True):
    """A process of MPS, not another one that gets its number later, and the GPUs it sees, in their order."""

    process: psutil.Process
    devices: tuple[str, ...]

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that has ended and is our child is reaped."""
        try:
            if not self.process.is_running():
                return False
            if self.process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
                return True
            # Orphans are left to the first process of a container, which may be us; no other process reaps them.
            self.process.wait(timeout=0)
        except (psutil.NoSuchProcess, psutil.TimeoutExpired):
            pass
        return False

    async def ended(self, within: float | None) -> bool:
        """Wait for its end, at most so many seconds; return whether it has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.alive:  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(_LOOK_EVERY)
        return not self.alive

    async def end(self, patience: float = 3.0) -> None:
        """Ask it to end, and kill it if it has not within `patience` seconds; returns once it is gone."""
        for send, within in ((self.process.terminate, patience), (self.process.kill, None)):
            if not self.alive:
                return
            with contextlib.suppress(psutil.NoSuchProcess):
                send()
            await self.ended(within)


class CandidateDaemon(Struct, frozen=True):
    """A process that looks like the control daemon of a pipe directory, and why it cannot be ours, None if it is."""

    process: MpsProcess
    objection: str | None


def candidates(pipe: Path) -> Iterator[CandidateDaemon]:
    """Find each process that by its command line and environment is the control daemon of a pipe directory."""
    for found, arguments in _processes_of(CONTROL_PROGRAM, pipe):
        # Without this option it only passes a command to the daemon.
        if "-d" in arguments:
            yield CandidateDaemon(found, _objection(found.process, pipe / CONTROL_SOCKET))


def servers(pipe: Path) -> list[MpsProcess]:
    """Return the MPS servers of a pipe directory, each of which runs as the user of its clients.

    The control daemon starts them, so they see the file systems that it sees; a pod's process that has their name and
    environment does not, and may have a directory of its own at the same path.
    """
    return [found for found, _ in _processes_of(SERVER_PROGRAM, pipe) if _sees_our_files(found.process)]


def _objection(process: psutil.Process, control: Path) -> str | None:
    """Return why a process cannot be our daemon: any process can have its name and its environment."""
    try:
        if process.uids().effective != os.geteuid():
            return "it belongs to another user"
        if not _sees_our_files(process):
            return "it runs in another mount namespace than gpushare mps"
        if not _listens(_PROC / str(process.pid), control):
            return f"it does not listen on {control}"
    except OSError as error:
        return f"it cannot be inspected: {error.strerror or error}"
    except psutil.Error as error:
        return f"it cannot be inspected: {error}"
    return None


def _sees_our_files(process: psutil.Process) -> bool:
    """Return whether a process has our mount namespace; one of another container or of a pod has its own."""
    try:
        return (_PROC / str(process.pid) / "ns/mnt").samefile(_PROC / "self/ns/mnt")
    except OSError:  # it has ended, or we may not look at it
        return False


def _listens(entry: Path, at: Path) -> bool:
    """Return whether a process has the socket that listens at a path; see "net/unix" in proc_net(5)."""
    lines = (line.split(maxsplit=7) for line in os.fsdecode((entry / "net/unix").read_bytes()).splitlines()[1:])
    inodes = {line[6] for line in lines if line[7:] == [str(at)] and int(line[3], 16) & _LISTENING}
    return any(_target(each) in {f"socket:[{inode}]" for inode in inodes} for each in (entry / "fd").iterdir())


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # closed meanwhile
        return ""


def _processes_of(program: str, pipe: Path) -> Iterator[tuple[MpsProcess, list[str]]]:
    """Find each process that runs `program` for a pipe directory, with its arguments."""
    # Not `process_iter`, which keeps a process in mind when another one has got its number.
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile, or we may not look at it
            process = psutil.Process(pid)
            arguments = process.cmdline()
            # A script, as in the test kit, comes after its interpreter.
            if not any(argument.rpartition("/")[2] == program for argument in arguments[:2]):
                continue
            environment = process.environ()
            if environment.get(PIPE_VARIABLE) == str(pipe):
                devices = environment.get(DEVICES_VARIABLE, "")
                yield MpsProcess(process, tuple(filter(None, devices.split(",")))), arguments
