"""The stand-in as a test holds it."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import gpushare_plugin
from gpushare_plugin.testing.mps_programs import client as client_program
from gpushare_plugin.testing.mps_programs.clients import Effective
from gpushare_plugin.testing.mps_programs.wire import (
    CONTROL_PROGRAM,
    HOME_VARIABLE,
    PID_FILE,
    SERVER_PROGRAM,
    SOCKET,
    FakeMpsError,
    Prompt,
    TurnedAwayError,
)
from gpushare_plugin.testing.running import PATIENCE

PAUSE = 0.01

_PACKAGES = Path(gpushare_plugin.__file__).parent.parent
_SCRIPT = """\
#!{python}
import sys
sys.path.insert(0, {packages!r})
from gpushare_plugin.testing.mps_programs.program import main
main()
"""
"""The interpreter is the one a virtual environment is made from: without the packages there, and whatever hooks these
have, a program starts in a tenth of the time. The real ones take milliseconds, and run again and again. Whatever build
of gpushare starts them, they are those of this package."""


class FakeClient:
    """A program under MPS, as a process of its own, until it is closed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it, and wait until it knows what it gets."""
        self._process = subprocess.Popen(  # noqa: S603 - the stand-in itself
            [sys.executable, client_program.__file__],
            env={**environment, "PYTHONPATH": str(_PACKAGES)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        self.effective: Effective | None = json.loads(self._process.stdout.readline())
        """Its limits; None where no MPS control daemon answers, and it runs without MPS and without limits."""

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it was started with, as the kernel shows them."""
        variables = Path("/proc", str(self.pid), "environ").read_text().split("\0")
        return dict(each.partition("=")[::2] for each in variables if each)

    @property
    def memory_mib(self) -> list[int | None]:
        """The limits of memory on the GPUs that it sees, in its order; None for no limit."""
        return list(self.effective["memory_mib"].values()) if self.effective else []

    def __enter__(self) -> Self:
        """Return the program itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let it end."""
        self.close()

    def close(self) -> None:
        """Let it end, which ends its connection."""
        self._process.communicate()


class FakeMps:
    """The programs of MPS in a directory for PATH; every process they leave ends with `close`.

    The commands below speak to the daemon of one pipe directory, which need not be the only one.
    """

    def __init__(self) -> None:
        """Make the programs."""
        self._directory = tempfile.TemporaryDirectory(prefix="fake-mps-")
        self.path = Path(self._directory.name)
        self.programs = self.path / "bin"
        self.programs.mkdir()
        for name in (CONTROL_PROGRAM, SERVER_PROGRAM):
            program = self.programs / name
            program.write_text(_SCRIPT.format(python=Path(sys.executable).resolve(), packages=str(_PACKAGES)))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self._behaviour: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Return the stand-in itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End every process and remove the programs."""
        self.close()

    def close(self) -> None:
        """End every process that came of the programs, and remove them."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._directory.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process find the programs; lay them over its environment."""
        return {"PATH": f"{self.programs}:{os.environ.get('PATH', '')}", HOME_VARIABLE: str(self.path)}

    def processes(self) -> list[int]:
        """Return the daemons and servers that run, also those that are stopped."""
        try:
            noted = (self.path / "processes").read_text().split()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in noted if self._runs(pid)]

    def refuse_to_start(self, said: str | None) -> None:
        """Let every start fail with these words; None lets them succeed again."""
        self._behave("start", said)

    def serve_one_user(self) -> None:
        """Know no option to serve several users at once, like version 535."""
        self._behave("one user", "")

    def know_protocol_2_only(self) -> None:
        """Know no option that chooses a protocol, like versions before 615."""
        self._behave("protocol 2", "")

    def tell_whole_gb(self) -> None:
        """Tell limits of memory of 1 GB and more in whole GB with protocol 3, as protocol 2 does."""
        self._behave("whole gb", "")

    def ignore(self, command: str | None) -> None:
        """Let daemons pass over this command in silence; None for none."""
        self._behave("ignored", command)

    def pid(self, pipe: Path) -> int:
        """Return the process of the daemon of a pipe directory; raises FakeMpsError when there is none."""
        try:
            pid = (pipe / PID_FILE).read_text().strip()
        except FileNotFoundError:
            pid = ""
        if not pid or int(pid) not in self.processes():
            raise FakeMpsError(f"no daemon runs in {pipe}")
        return int(pid)

    def crash(self, pipe: Path) -> int:
        """Kill the daemon, which leaves its files and its servers; return which process it was."""
        os.kill(pid := self.pid(pipe), signal.SIGKILL)
        return pid

    def kill(self, server: int) -> None:
        """Kill a server; its daemon lives on."""
        os.kill(server, signal.SIGKILL)

    def hang(self, pipe: Path) -> int:
        """Let the daemon answer nothing any more; return which process it is."""
        os.kill(pid := self.pid(pipe), signal.SIGSTOP)
        return pid

    def ask(self, pipe: Path, command: str) -> str:
        """Return the daemon's answer to a command; raises FakeMpsError when no daemon answers.

        While the daemon serves another connection, it is asked again.
        """
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with Prompt(pipe) as prompt:
                    return prompt.ask(command)[1]
            except TurnedAwayError as error:
                if time.monotonic() > end:
                    raise FakeMpsError(f"the daemon in {pipe} answers nobody: {error}") from error
                time.sleep(PAUSE)
            except OSError as error:
                raise FakeMpsError(f"no daemon answers in {pipe}: {error}") from error

    def fall_silent(self, pipe: Path) -> socket.socket:
        """Keep the daemon from hearing anybody, as anybody can, until the connection that this returns is closed."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(pipe / SOCKET))
        return connection

    def prompt(self, pipe: Path) -> Prompt:
        """Have the daemon take no other commands until the prompt is left, as an idle administrator does.

        A command given elsewhere may still come first, so use it once it has answered.
        """
        return Prompt(pipe)

    def start_server(self, pipe: Path, user: int = 0) -> int:
        """Start a server, as the first client of a user makes the daemon do; return its process."""
        before = set(self.ask(pipe, "get_server_list").split())
        self.ask(pipe, f"start_server -uid {user}")
        (new,) = set(self.ask(pipe, "get_server_list").split()) - before
        return int(new)

    def connect(self, pipe: Path, server: int, client: int) -> None:
        """Let a process use a server; nothing says that there is such a process."""
        self.ask(pipe, f"connect {server} {client}")

    def disconnect(self, pipe: Path, server: int, client: int) -> None:
        """Let the process leave the server again."""
        self.ask(pipe, f"disconnect {server} {client}")

    def program(self, environment: Mapping[str, str]) -> FakeClient:
        """Start a program that uses CUDA with this environment, as in a container; it ends when it is closed."""
        return FakeClient({**self.environment, **environment})

    def _behave(self, name: str, how: str | None) -> None:
        self._behaviour.pop(name, None)
        if how is not None:
            self._behaviour[name] = how
        new = self.path / "behaviour.new"
        new.write_text(json.dumps(self._behaviour))
        new.rename(self.path / "behaviour.json")

    def _runs(self, pid: str) -> bool:
        """Tell whether a process runs and is one of ours: numbers are used again. A zombie has no environment."""
        try:
            environment = Path("/proc", pid, "environ").read_bytes()
        except OSError:
            return False
        return f"{HOME_VARIABLE}={self.path}".encode() in environment.split(b"\0")
