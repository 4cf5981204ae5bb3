"""Starts `nvidia-cuda-mps-control`, and gives commands to the control daemon; the commands of protocol 2.

The commands of protocol 3 are in `namespaces`. Facts about protocol 2: the manual page; NVIDIA's "Multi-Process
Service" document, appendix "Tools and Interface Reference"; answers of version 535. The program reads commands from
standard input, one per line. The exit status shows only whether the daemon could be reached; only the answer shows
whether the daemon rejected a command. Default limits apply to servers started later, and the limits of a server to
clients that connect later. A memory limit of 0M removes the limit, although no document says so.

The daemon takes commands from one connection at a time. A connection that does not state its purpose keeps all further
connections waiting without end. While a prompt is open on a connection, commands on further connections end at once,
mostly with status 0 and no answer. Every question is therefore followed by a second question that always has an answer.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.socket_path import why_too_long
from gpushare_plugin.base.reported import Repeats
from gpushare_plugin.core.namespaces import LONGEST_SOCKET, WITH_NAMESPACES, MpsProtocol
from gpushare_plugin.mps import pipe_directory
from gpushare_plugin.mps.exchange import ListedClient, MpsSettings
from gpushare_plugin.mps.limits import MpsLimit, limits_of
from gpushare_plugin.mps.peers import peers
from gpushare_plugin.mps.processes import (
    CONTROL_PROGRAM,
    DEVICES_VARIABLE,
    PIPE_VARIABLE,
    PROTOCOL_OPTION,
    STAYS,
    MpsProcess,
    candidates,
    servers,
)

_log = structlog.get_logger()

LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
"""The environment variable with the directory for logs of the daemon and of the servers."""

_ALL_USERS = {2: ("-multiuser-server",), 3: ("-m",)}
"""The option with which one server serves clients of all users, by protocol.

Version 580 has the option of protocol 2, version 535 does not. For protocol 3 see NVIDIA, "Multi-Process Service" r615,
MPS v3 Interface; not seen on a card.
"""
_WITH_PROTOCOL = {2: ("-d",), 3: ("-d", PROTOCOL_OPTION, "3")}
"""The options that start a daemon, by protocol; versions before 580 know no choice of a protocol."""
_SIGN_OF_LIFE = "get_default_active_thread_percentage"
"""A question that the daemon always answers with a number."""
_NO_DAEMON = "Cannot find MPS control daemon"
_PAUSE = 0.1
"""Seconds until a daemon busy with another connection is asked again."""
_MOST_PEERS = 5
"""The most peers named in a message: many connections must not fill the log."""
_IGNORED_PAUSE = 600.0
"""Seconds before another process that only resembles the daemon is logged for the same objection."""
_MOST_IGNORED = 16
"""The most objections counted apart."""
_STARTED_WITHIN = 20.0
"""Seconds that the start of the daemon may take, in addition to the seconds for any answer."""
_QUIT_WITHIN = 5
"""Seconds that clients have to end by themselves after the quit command."""
_GONE_WITHIN = 1.0
"""Seconds that the daemon may take to disappear after the answer to the quit command."""


class ControlError(GpushareError):
    """The control daemon did not start or did not carry out a command; the message names the command and the result."""


class ProgramError(ControlError):
    """The program `nvidia-cuda-mps-control` cannot be run; the message says why.

    The error says nothing about a running daemon.
    """


class Control:
    """The control daemon of a pipe directory and a log directory; the daemon need not run."""

    def __init__(
        self, pipe: Path, log: Path, patience: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Wait for every answer at most `patience` seconds; `clock` returns seconds, for pauses in the log."""
        self._pipe = pipe
        self._log = log
        self._patience = patience
        self._ignored = Repeats(_IGNORED_PAUSE, _MOST_IGNORED)
        self._clock = clock

    def find(self) -> MpsProcess | None:
        """Return the running daemon, whoever started it, or None.

        A process that only resembles the daemon is ignored, and logged: one for each objection within a pause, since
        any container can start such processes without end.
        """
        for candidate in candidates(self._pipe):
            if candidate.objection is None:
                return candidate.process
            if self._ignored.untold(candidate.objection, self._clock()) is not None:
                _log.warning("mps_daemon_ignored", pid=candidate.process.pid, reason=candidate.objection)
        return None

    async def start(self, devices: Sequence[str], protocol: MpsProtocol = 2) -> MpsProcess:
        """Start the daemon with the GPUs `devices`, in order; the daemon outlives this process. Raises ControlError.

        One server serves clients of all users where the program can do that. Otherwise clients of a second user wait
        until all clients of the first user have ended.
        """
        what = "the pipe directory of MPS"
        if protocol == WITH_NAMESPACES and (reason := why_too_long(self._pipe, LONGEST_SOCKET, what)):
            raise ControlError(f"{reason}: choose a shorter MPS root for protocol 3")
        try:
            await asyncio.to_thread(pipe_directory.clear, self._pipe)
        except OSError as error:
            raise ControlError(f"the MPS pipe directory {self._pipe} cannot be cleared: {error}") from error
        variables = {DEVICES_VARIABLE: ",".join(devices)}
        all_users, options = _ALL_USERS[protocol], _WITH_PROTOCOL[protocol]
        status, said = await self._run(*all_users, *options, variables=variables, patience=_STARTED_WITHIN)
        refusal = said if status != 0 else None
        if refusal is not None:
            status, said = await self._run(*options, variables=variables, patience=_STARTED_WITHIN)
        found = self.find()
        if status != 0 or found is None:
            raise ControlError(
                f"{CONTROL_PROGRAM} {' '.join(options)} exited with status {status} and no MPS control daemon runs; it "
                f"printed {said!r}; see {self._log}"
            )
        if refusal is not None:
            command = " ".join((CONTROL_PROGRAM, *all_users, *options))
            _log.warning("mps_one_user_at_a_time", reason=f"{command} is refused: {refusal}")
        if said:
            _log.warning("mps_daemon_warned", reason=said)
        return found

    async def ask(self, command: str) -> str:
        """Return the daemon's answer to `command`.

        Raises ControlError, also if further connections keep the daemon busy for `patience` seconds.
        """
        now = asyncio.get_running_loop().time
        until = now() + self._patience
        while True:
            status, said = await self._run(commands=(command, _SIGN_OF_LIFE))
            answer, _, sign = said.rpartition("\n")
            if status == 0 and _number(sign) is not None:
                return answer.strip()
            if _NO_DAEMON in said or now() >= until:
                said = (
                    said or "it closes each connection without an answer, as it does while a prompt is open elsewhere"
                )
                raise ControlError(f"the MPS control daemon does not accept the command {command!r}: {said}")
            await asyncio.sleep(_PAUSE)

    async def command(self, *words: str) -> str:
        """Return the answer of a daemon with protocol 3 to the command that `words` are; raises ControlError.

        An answer can be missing although a command has been carried out, or the other way round: read what a command
        should have changed.
        """
        status, said = await self._run(*words)
        if status != 0:
            raise ControlError(
                f"the MPS control daemon does not accept the command {' '.join(words)!r}: {said or 'it says nothing'}"
            )
        return said

    async def probe(self) -> None:
        """Make sure that the daemon answers; raises ControlError."""
        await self.ask(_SIGN_OF_LIFE)

    def holders(self, daemon: MpsProcess) -> str:
        """Describe the processes connected to `daemon` except its own servers: a connection may keep `daemon` busy."""
        try:
            found = peers(daemon.pid)
        except OSError as error:
            return f"cannot determine which processes are connected to it ({error.strerror or error})"
        own = {server.pid for server in servers(self._pipe)}
        names = sorted(str(peer) for peer in found if peer.pid not in own)
        more = f" and {len(names) - _MOST_PEERS} more" if len(names) > _MOST_PEERS else ""
        return f"connected to it: {', '.join(names[:_MOST_PEERS]) or 'no process'}{more}"

    async def clients(self) -> tuple[ListedClient, ...]:
        """Return the processes that use the daemon's servers; raises ControlError."""
        return tuple(
            [
                ListedClient(pid=pid, server=str(server))
                for server in await self._servers()
                for pid in _numbers(await self.ask(f"get_client_list {server}"))
            ]
        )

    async def limit(self, devices: Sequence[str], settings: MpsSettings) -> None:
        """Set the limits of `settings`; `devices` are the daemon's GPUs in the daemon's order. Raises ControlError.

        A GPU missing from `settings` or from `devices` keeps its limit.
        """
        limits = limits_of(devices, settings)
        await self._set(limits)
        await self._check(limits)

    async def restore(self, devices: Sequence[str], settings: MpsSettings) -> dict[str, str]:
        """Set the limits of `settings` again, because any process with access to the socket can change limits.

        Each limit is read and set on one connection: another process can change the limit before or after that, when
        this or the next answer shows the change, and never in between. Answers have whole GB only, and can hide a
        changed limit: all limits are set in any case. Returns the answers that differed from `settings`, by the command
        for the limit. Raises ControlError.
        """
        limits = limits_of(devices, settings)
        if found := await self._differing(limits, set_again=True):
            await self._check(limits)
        return found

    async def quit(self, daemon: MpsProcess) -> None:
        """End `daemon` and its servers; processes that still use a server after a few seconds lose it.

        Raises ControlError if the daemon stays even after SIGKILL.
        """
        try:
            # The exit status shows only whether the servers ended by themselves.
            if daemon.protocol == WITH_NAMESPACES:
                await self._run("-q", patience=_QUIT_WITHIN)
            else:
                await self._run(commands=(f"quit -t {_QUIT_WITHIN}",), patience=_QUIT_WITHIN)
        except ControlError as error:
            _log.warning("mps_daemon_quit_failed", pid=daemon.pid, reason=str(error))
        if not (await daemon.ended(_GONE_WITHIN) or await daemon.end()):
            raise ControlError(f"the MPS control daemon, process {daemon.pid}, does not end: {STAYS}")

    async def _servers(self) -> list[int]:
        return _numbers(await self.ask("get_server_list"))

    async def _set(self, limits: Sequence[MpsLimit]) -> None:
        for server in (None, *await self._servers()):
            await self.ask("\n".join(limit.command(server) for limit in limits))

    async def _check(self, limits: Sequence[MpsLimit]) -> None:
        """Make sure that the defaults are set; a server may have ended since. Raises ControlError."""
        for command, found in (await self._differing(limits)).items():
            if command.startswith("set_default_"):
                raise ControlError(f"the MPS control daemon did not apply {command!r}: the limit is {found!r}")

    async def _differing(self, limits: Sequence[MpsLimit], *, set_again: bool = False) -> dict[str, str]:
        """Return the answers that differ from the desired limits, by the command that sets the limit.

        `set_again`: set each limit once it is read, before any other connection is served.
        """
        found = {}
        for server in (None, *await self._servers()):
            for limit in limits:
                question, command = limit.question(server), limit.command(server)
                said = await self.ask(f"{question}\n{command}" if set_again else question)
                answer = said.partition("\n")[0].strip()  # to set a percentage has an answer, too
                if not limit.is_set_by(answer):
                    found[command] = answer
        return found

    async def _run(
        self,
        *arguments: str,
        commands: Sequence[str] = (),
        variables: dict[str, str] | None = None,
        patience: float = 0.0,
    ) -> tuple[int, str]:
        program = shutil.which(CONTROL_PROGRAM)
        if program is None:
            raise ProgramError(
                f"the program {CONTROL_PROGRAM} is not in PATH ({os.environ.get('PATH', '')}); it is part of "
                "the driver; the container runtime adds it where NVIDIA_DRIVER_CAPABILITIES includes compute"
            )
        try:
            process = await _started(program, arguments, self._environment() | (variables or {}))
        except OSError as error:
            raise ProgramError(f"{program} cannot be run: {error.strerror or error}") from error
        what = " ".join((CONTROL_PROGRAM, *arguments, *commands[:1])).partition("\n")[0]
        try:
            async with asyncio.timeout(self._patience + patience):
                output, _ = await process.communicate("".join(f"{command}\n" for command in commands).encode())
        except TimeoutError:
            raise ControlError(f"{what!r} had no answer within {self._patience + patience:g} s") from None
        finally:
            await _end(process)
        assert process.returncode is not None  # noqa: S101 - the process has ended
        return process.returncode, output.decode(errors="replace").strip()

    def _environment(self) -> dict[str, str]:
        """Return the environment of this process, without any variable that the daemon would take for a setting."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return kept | {PIPE_VARIABLE: str(self._pipe), LOG_VARIABLE: str(self._log)}


async def _started(
    program: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """Start `program` with pipes; raises OSError.

    A cancellation waits until the process has started, or asyncio would end the process, as `_end` must not.
    """
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *(program, *arguments),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            await _end(await starting)
        raise


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a process that has not ended, and wait for its end; a daemon that holds its pipes is not waited for.

    Not by `process.kill`, which collects the status of a process that has just ended: asyncio then misses the status,
    and logs a warning.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GONE_WITHIN):
                await process.wait()  # which returns once the pipes are closed, too


def _numbers(answer: str) -> list[int]:
    """Return the numbers of `answer`, one per line; lines with words of explanation are skipped."""
    return [int(line) for line in answer.split("\n") if line.strip().isdecimal()]


def _number(answer: str) -> float | None:
    try:
        return float(answer)
    except ValueError:
        return None
