"""Starting `nvidia-cuda-mps-control` and telling it what to do.

Facts: its manual page; NVIDIA's "Multi-Process Service" document, appendix "Tools and Interface Reference"; answers as
version 535 gives them. Commands come on standard input, one a line, and the exit status tells only whether the daemon
could be reached, so a refusal is known by its answer. Default limits count for servers started later, those of a server
for the clients that connect later. A memory limit of 0M takes the limit away, which no document says.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import structlog

from gpushare_plugin.adapters.host.mps.exchange import MpsSettings
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.programs.mps.processes import (
    CONTROL_PROGRAM,
    DEVICES_VARIABLE,
    PIPE_VARIABLE,
    MpsProcess,
    control_daemon,
)

_log = structlog.get_logger()

LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"

_ALL_THREADS = 100
_STARTED_WITHIN = 20.0
"""Seconds the daemon may take to start, beside those for any answer."""
_QUIT_WITHIN = 5
"""Seconds that clients get to end by themselves once the daemon is told to quit."""
_GONE_WITHIN = 1.0
"""Seconds the daemon may take to be gone once it has said goodbye."""


class ControlError(GpushareError):
    """The control daemon did not do what it was asked; the message says what that was, and what came instead."""


class ProgramError(ControlError):
    """The program cannot be run at all, which tells nothing of a daemon that runs; the message says what is missing."""


class Control:
    """The control daemon of one pipe directory, and its log directory; it need not run."""

    def __init__(self, pipe: Path, log: Path, patience: float = 10.0) -> None:
        """Wait for each answer at most `patience` seconds."""
        self._pipe = pipe
        self._log = log
        self._patience = patience

    def find(self) -> MpsProcess | None:
        """Return the daemon that runs now, whoever started it."""
        return control_daemon(self._pipe)

    async def start(self, devices: Sequence[str]) -> MpsProcess:
        """Start the daemon for these GPUs, in this order; it goes on when this process ends. Raises ControlError."""
        variables = {DEVICES_VARIABLE: ",".join(devices)}
        status, said = await self._run("-d", variables=variables, patience=_STARTED_WITHIN)
        found = self.find()
        if status != 0 or found is None:
            raise ControlError(
                f"{CONTROL_PROGRAM} -d was expected to leave a daemon, and ended with status {status}, saying "
                f"{said!r}; see {self._log}"
            )
        if said:
            _log.warning("the MPS control daemon has a complaint", said=said)
        return found

    async def ask(self, command: str, patience: float = 0.0) -> str:
        """Return the daemon's answer; `patience` is for commands that take longer. Raises ControlError."""
        status, answer = await self._run(command=command, patience=patience)
        if status != 0:
            raise ControlError(f"the MPS control daemon cannot be asked {command!r}: {answer or f'status {status}'}")
        return answer

    async def probe(self) -> None:
        """Find out that the daemon answers; raises ControlError."""
        await self.ask("get_default_active_thread_percentage")

    async def clients(self) -> int:
        """Return how many processes use the daemon's servers; raises ControlError."""
        return sum([len(_numbers(await self.ask(f"get_client_list {server}"))) for server in await self._servers()])

    async def limit(self, devices: Sequence[str], settings: MpsSettings) -> None:
        """Set the limits of `settings`; `devices` are the daemon's GPUs in their order. Raises ControlError.

        A GPU that only one of them names is left as it is.
        """
        percentage = settings.active_thread_percentage or _ALL_THREADS
        command = f"set_default_active_thread_percentage {percentage}"
        if _number(answer := await self.ask(command)) != percentage:
            raise ControlError(f"the MPS control daemon refused {command!r}: {answer!r}")
        limits = {devices.index(gpu.uuid): gpu.memory_limit_mib for gpu in settings.gpus if gpu.uuid in devices}
        for ordinal, limit in limits.items():
            await self._limit_memory(ordinal, limit)
        for server in await self._servers():
            # A server may have ended since; what it has to say is in the log of the daemon.
            await self.ask(f"set_active_thread_percentage {server} {percentage}")
            for ordinal, limit in limits.items():
                await self.ask(f"set_device_pinned_mem_limit {server} {ordinal} {limit or 0}M")

    async def quit(self, daemon: MpsProcess) -> None:
        """End `daemon` and its servers, which lose processes that still use them after a few seconds."""
        try:
            # The status tells only whether the servers ended by themselves.
            await self.ask(f"quit -t {_QUIT_WITHIN}", patience=_QUIT_WITHIN)
        except ControlError as error:
            _log.warning("the MPS control daemon does not quit well", pid=daemon.pid, reason=str(error))
        if not await daemon.ended(_GONE_WITHIN):
            await daemon.end()

    async def _servers(self) -> list[int]:
        return _numbers(await self.ask("get_server_list"))

    async def _limit_memory(self, ordinal: int, limit: int | None) -> None:
        command = f"set_default_device_pinned_mem_limit {ordinal} {limit or 0}M"
        said = await self.ask(command)
        # A wrong ordinal is passed over in silence. The amount is told in whole GB, so that there is one must do.
        told = await self.ask(f"get_default_device_pinned_mem_limit {ordinal}")
        if said or bool(told) != (limit is not None):
            raise ControlError(f"the MPS control daemon refused {command!r}: {said!r}, and the limit is {told!r}")

    async def _run(
        self,
        *arguments: str,
        command: str = "",
        variables: dict[str, str] | None = None,
        patience: float = 0.0,
    ) -> tuple[int, str]:
        program = shutil.which(CONTROL_PROGRAM)
        if program is None:
            raise ProgramError(
                f"the program {CONTROL_PROGRAM} is not in PATH ({os.environ.get('PATH', '')}); it comes with the "
                "driver, and the container runtime adds it where NVIDIA_DRIVER_CAPABILITIES has compute"
            )
        try:
            process = await asyncio.create_subprocess_exec(
                *(program, *arguments),
                env=self._environment() | (variables or {}),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise ProgramError(f"{program} cannot be run: {error.strerror or error}") from error
        what = " ".join((CONTROL_PROGRAM, *arguments, command)).strip()
        try:
            async with asyncio.timeout(self._patience + patience):
                output, _ = await process.communicate(f"{command}\n".encode())
        except TimeoutError:
            raise ControlError(f"{what!r} had no answer within {self._patience + patience:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None  # noqa: S101 - it has ended
        return process.returncode, output.decode(errors="replace").strip()

    def _environment(self) -> dict[str, str]:
        """Return our environment with nothing in it that the daemon would take for a setting."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return kept | {PIPE_VARIABLE: str(self._pipe), LOG_VARIABLE: str(self._log)}


def _numbers(answer: str) -> list[int]:
    """Return the numbers of an answer, one a line; other lines are words of explanation."""
    return [int(line) for line in answer.split("\n") if line.strip().isdecimal()]


def _number(answer: str) -> float | None:
    try:
        return float(answer)
    except ValueError:
        return None
