"""The processes of MPS: how to find them by the kernel's own data, and how to end them.

Only newer control daemons write a process number into the pipe directory, and pods can write to the directory, too. A
process is therefore recognized by its command line and environment, and by facts that only the kernel can state.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import psutil
import structlog

from gpushare_plugin.base.files.mounts import sees_our_files
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.namespaces import SERVER, MpsProtocol

CONTROL_PROGRAM = "nvidia-cuda-mps-control"
"""The file name of the control daemon's program."""
SERVER_PROGRAM = "nvidia-cuda-mps-server"
"""The file name of the MPS server's program."""

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
"""The environment variable with the pipe directory."""
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable with the UUIDs of the daemon's GPUs, separated by commas."""

PROTOCOL_VARIABLE = "CUDA_MPS_PROTOCOL_VERSION"
"""The environment variable with the protocol of the daemon; it counts more than the option."""
PROTOCOL_OPTION = "-p"
"""The option with the protocol of the daemon, 2 by default.

Source of variable and option: NVIDIA, "Multi-Process Service" r615, MPS v3 Interface.
"""

CONTROL_SOCKET = "control"
"""The socket of the control daemon in the pipe directory; a second socket in the directory is for root."""

STAYS = (
    "it still runs after SIGKILL, so a call of the driver does not return; see dmesg of the node, and restart the node "
    "if the process stays"
)
"""Why a process has not ended, and what to do."""

_log = structlog.get_logger()

_PROC = Path("/proc")
_LOOK_EVERY = 0.02
_LISTENING = 0x10000
"""The flag of a socket that accepts connections (__SO_ACCEPTCON in the kernel)."""


class MpsProcess(Struct, frozen=True):
    """A process of MPS, and never a later process with the same number."""

    process: psutil.Process
    """The process, known by number and start time."""
    devices: tuple[str, ...]
    """The GPUs visible to the process, in order."""
    protocol: MpsProtocol = 2
    """The protocol that a control daemon speaks; without meaning for a server."""

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs; a child of this process that has ended is reaped."""
        try:
            if not self.process.is_running():
                return False
            if self.process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
                return True
            # The first process of a container, possibly this process, inherits orphans; no other process reaps orphans.
            self.process.wait(timeout=0)
        except (psutil.NoSuchProcess, psutil.TimeoutExpired):
            pass
        return False

    async def ended(self, within: float) -> bool:
        """Wait for the end of the process, at most `within` seconds; return whether the process has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.alive:  # noqa: ASYNC110 - no event reports the end
                    await asyncio.sleep(_LOOK_EVERY)
        return not self.alive

    async def end(self, patience: float = 3.0, killed_within: float = 10.0) -> bool:
        """Ask the process to end, and kill the process after `patience` seconds; return whether the process is gone.

        A process that is still there `killed_within` seconds after the kill is logged: SIGKILL waits for a call of the
        driver that does not return.
        """
        for send, within in ((self.process.terminate, patience), (self.process.kill, killed_within)):
            if not self.alive:
                return True
            with contextlib.suppress(psutil.NoSuchProcess):
                send()
            if await self.ended(within):
                return True
        _log.error("mps_process_stays", pid=self.pid, reason=STAYS)
        return False


class CandidateDaemon(Struct, frozen=True):
    """A process that resembles the control daemon of a pipe directory."""

    process: MpsProcess
    """The process."""
    objection: str | None
    """Why the process is not the control daemon for this program, in words; None if the process is the daemon."""


def candidates(pipe: Path) -> Iterator[CandidateDaemon]:
    """Find every process that is the control daemon of `pipe` by command line and environment."""
    for found, arguments in _processes_of(CONTROL_PROGRAM, pipe):
        # Without `-d` the program only passes a command to the daemon.
        if "-d" in arguments:
            yield CandidateDaemon(found, _objection(found.process, pipe / CONTROL_SOCKET))


def servers(pipe: Path) -> list[MpsProcess]:
    """Return the MPS servers of a pipe directory; a server for one user runs as that user, a server for all as root.

    The control daemon starts the servers, so the servers see the file systems of the daemon. A process of a pod can
    have the name and the environment of a server, but sees other file systems, and may have a directory of its own at
    the same path.
    """
    return [found for found, _ in _processes_of(SERVER_PROGRAM, pipe) if sees_our_files(found.pid)]


def process_of(number: str) -> MpsProcess | None:
    """Return the process with a number in text, None for other text and for a process that cannot be seen from here."""
    try:
        return MpsProcess(psutil.Process(int(number)), ()) if number.isdecimal() else None
    except psutil.Error:
        return None


def _objection(process: psutil.Process, control: Path) -> str | None:
    """Return why a process cannot be the control daemon, or None; any process can have its name and environment."""
    try:
        if process.uids().effective != os.geteuid():
            return "it belongs to another user"
        if not sees_our_files(process.pid):
            return "it runs in another mount namespace than gpushare mps"
        if not _listens(_PROC / str(process.pid), control):
            return f"it does not listen on {control}"
    except OSError as error:
        return f"it cannot be inspected: {error.strerror or error}"
    except psutil.Error as error:
        return f"it cannot be inspected: {error}"
    return None


def _listens(entry: Path, at: Path) -> bool:
    """Return whether a process has the socket listening at path `at`; see "net/unix" in proc_net(5)."""
    lines = (line.split(maxsplit=7) for line in os.fsdecode((entry / "net/unix").read_bytes()).splitlines()[1:])
    inodes = {line[6] for line in lines if line[7:] == [str(at)] and int(line[3], 16) & _LISTENING}
    return any(_target(each) in {f"socket:[{inode}]" for inode in inodes} for each in (entry / "fd").iterdir())


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # closed meanwhile
        return ""


def _processes_of(program: str, pipe: Path) -> Iterator[tuple[MpsProcess, list[str]]]:
    """Find every process that runs `program` for the pipe directory `pipe`; yield the process and its arguments."""
    # Not `process_iter`: its cache keeps an ended process after a new process has got the number.
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):  # the process has ended meanwhile, or access is denied
            process = psutil.Process(pid)
            arguments = process.cmdline()
            # The name of a script, as in the test kit, follows the name of its interpreter.
            if not any(argument.rpartition("/")[2] == program for argument in arguments[:2]):
                continue
            environment = process.environ()
            # With protocol 3, a server may have a folder of the pipe directory.
            if Path(environment.get(PIPE_VARIABLE, "/")) in {pipe, pipe / SERVER}:
                devices = tuple(filter(None, environment.get(DEVICES_VARIABLE, "").split(",")))
                yield MpsProcess(process, devices, _protocol(arguments, environment)), arguments


def _protocol(arguments: Sequence[str], environment: Mapping[str, str]) -> MpsProtocol:
    options = (value for option, value in pairwise(arguments) if option in {PROTOCOL_OPTION, "--protocol"})
    found = environment.get(PROTOCOL_VARIABLE) or next(options, "2")
    return 3 if found == "3" or "--protocol=3" in arguments else 2
