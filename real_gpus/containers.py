"""Containers as a runtime starts them from what the kubelet gives it: cgroup, mounts, environment, and the GPUs."""

import asyncio
import contextlib
import functools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from gpushare_plugin.gpus.containers import why_unknown
from gpushare_plugin.testing.kubelet import StartedContainer

_PACKAGES = Path(__file__).parent.parent
_IN_CONTAINER = "/gpushare"
_INSIDE = (sys.executable, "-m", "real_gpus.inside")
_ANSWER_WITHIN = 60.0
"""Seconds for the answer to one order."""
_CGROUPS = Path("/sys/fs/cgroup")

Answer = Mapping[str, Any]


class ProgramEndedError(Exception):
    """A program did not do what it must; the message says why, with what the program printed if it ended."""


def clean_environment() -> dict[str, str]:
    """Return the environment of this process without settings for CUDA or the container runtime."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "NVIDIA_"))}


class Cgroups:
    """The cgroups of pods below one of our own, which ends with the block."""

    def __init__(self, hierarchy: Path = _CGROUPS) -> None:
        """Make no cgroup yet; `hierarchy` is where cgroups of version 2 are mounted."""
        self._hierarchy = hierarchy
        self.root = hierarchy / f"gpushare-real-gpus-{os.getpid()}"
        """Our own cgroup."""
        self.why_none: str | None = None
        """Why containers have no cgroup here."""
        self.why_not_counted: str | None = None
        """Why the driver counts the memory of no cgroup here, whatever its version."""
        self.counted_by = ""
        """The controller by which the driver counts, `dmem` or `misc`; empty without one."""
        self._there = False

    def __enter__(self) -> Self:
        """Make our own cgroup, where this machine lets us."""
        root = self.root
        try:
            root.mkdir()
            if not (root / "cgroup.procs").exists():
                root.rmdir()
                raise NotADirectoryError(None, f"{self._hierarchy} has no cgroups of version 2")
        except OSError as error:
            self.why_none = f"no cgroup can be made: {error.strerror}"
        else:
            self._there = True
            self.why_none = why_unknown(Path("/proc"))
            self._see_controllers()
        return self

    def _see_controllers(self) -> None:
        """See by which controller the driver counts: by dmem, where the kernel counts GPUs of NVIDIA (MPS, r615)."""
        capacity = self._hierarchy / "dmem.capacity"
        wanted = "dmem" if capacity.exists() and "nvidia/" in capacity.read_text() else "misc"
        if wanted in (self.root / "cgroup.controllers").read_text().split():
            self.counted_by = wanted
        else:
            switch = f"echo +{wanted} > {self._hierarchy}/cgroup.subtree_control"
            self.why_not_counted = f"the controller {wanted} is off for new cgroups; `{switch}` turns it on"

    def __exit__(self, *_: object) -> None:
        """Remove all cgroups; their programs have ended."""
        if self._there:
            for folder, _directories, _files in os.walk(self.root, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()

    def make_again(self, cgroup: Path) -> None:
        """Remove a cgroup without programs, and make another one at the same path."""
        cgroup.rmdir()
        cgroup.mkdir()

    def of(self, pod_uid: str) -> str:
        """Return the folder of a new cgroup for a container of a pod, empty where none can be made."""
        if not self._there:
            return ""
        made = self.root / "kubepods" / "besteffort" / f"pod{pod_uid}" / secrets.token_hex(32)
        made.mkdir(parents=True)
        if self.counted_by:
            for each in reversed(made.relative_to(self.root).parents):
                (self.root / each / "cgroup.subtree_control").write_text(f"+{self.counted_by}")
        return str(made)


class Program:
    """A program that runs in a container and does what it is told."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        """Speak to `process`, which prints errors to the file `errors`."""
        if process.stdin is None or process.stdout is None:
            raise TypeError("a program needs pipes for its orders and answers")
        self._process = process
        self._orders, self._answers = process.stdin, process.stdout
        self._errors = errors

    @property
    def pid(self) -> int:
        """The process ID on the machine."""
        return self._process.pid

    async def ask(self, do: str, **details: Any) -> Answer:
        """Return the answer to an order; raises ProgramEndedError."""
        await self.order(do, **details)
        return await self.answer(do)

    async def must(self, do: str, **details: Any) -> Answer:
        """Return the answer to an order that the driver must not refuse; raises ProgramEndedError."""
        answer = await self.ask(do, **details)
        if "error" in answer:
            raise ProgramEndedError(f"the driver refuses {do!r}: {answer['error']}")
        return answer

    async def order(self, do: str, **details: Any) -> None:
        """Give an order without waiting for the answer."""
        with contextlib.suppress(ConnectionError):  # the answer says that the program has ended
            self._orders.write(json.dumps({"do": do, **details}).encode() + b"\n")
            await self._orders.drain()

    async def answer(self, do: str) -> Answer:
        """Return the answer to the order `do` given before; raises ProgramEndedError."""
        try:
            line = await asyncio.wait_for(self._answers.readline(), _ANSWER_WITHIN)
        except TimeoutError as error:
            raise ProgramEndedError(f"no answer to {do!r} within {_ANSWER_WITHIN:g} s") from error
        if not line:
            status = await self._process.wait()
            raise ProgramEndedError(f"ended with status {status} at {do!r}: {self._errors.read_text()[-500:].strip()}")
        answer: Answer = json.loads(line)
        return answer

    async def end(self) -> None:
        """Let the program end by itself, or kill the program where it does not."""
        self._orders.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            await self.kill()

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the program by a signal; the program handles no signal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        await self._process.wait()


class RunningContainer:
    """A container that was started with what the kubelet gave it; any number of programs run in it."""

    def __init__(self, started: StartedContainer, cgroup: str, folder: Path, gpus: Sequence[str]) -> None:
        """Run programs in `cgroup`; `folder` is ours, and `gpus` are the UUIDs of all GPUs of the machine."""
        self.environment = started.environment
        """What the container was granted."""
        self._mounts = [(each.container_path, each.host_path, each.read_only) for each in started.mounts]
        self.cgroup = cgroup
        """The folder of the cgroup of the programs; empty for none."""
        self._folder = folder
        self._gpus = gpus
        self._programs: list[Program] = []

    async def start(self, changes: Mapping[str, str | None] | None = None, user: int | None = None) -> Program:
        """Start a program; `changes` are what the program sets (None: removes) in its own environment.

        The program runs as `user`, a user ID; None is the user of this process.
        """
        # The driver keeps compiled kernels below HOME.
        environment = {**clean_environment(), "HOME": str(self._folder), **self.environment, **self._visible()}
        for name, value in (changes or {}).items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        number = len(self._programs)
        root, errors = self._folder / f"root-{number}", self._folder / f"errors-{number}"
        root.mkdir(parents=True)
        command = [sys.executable, "-m", "real_gpus.program"]
        program = await inside(command, environment, self._mounts, root, errors, cgroup=self.cgroup, user=user)
        self._programs.append(Program(program, errors))
        return self._programs[-1]

    async def end(self) -> None:
        """End all programs; others can be started later."""
        for program in self._programs:
            await program.end()

    @classmethod
    def of_no_pod(cls, gpu: str, folder: Path, gpus: Sequence[str], cgroup: str = "") -> Self:
        """Return what starts programs that are in no pod and see the GPU `gpu`."""
        return cls(StartedContainer("", {"NVIDIA_VISIBLE_DEVICES": gpu}, (), (), {}, (), {}), cgroup, folder, gpus)

    def _visible(self) -> Mapping[str, str]:
        """Return what has the effect of a runtime that shows the container only the GPUs of NVIDIA_VISIBLE_DEVICES."""
        granted = self.environment.get("NVIDIA_VISIBLE_DEVICES", "")
        return {"CUDA_VISIBLE_DEVICES": granted} if len(self._gpus) > 1 else {}


@functools.cache
def why_no_mounts() -> str | None:
    """Return why a container cannot have mounts here, None if it can."""
    with tempfile.TemporaryDirectory() as root:
        command = [*_INSIDE, _described(["true"], {}, [(root, root, True)], Path(root))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    if done.returncode == 0:
        return None
    return f"containers cannot have mounts, which takes root: {done.stderr.strip().rpartition(chr(10))[2]}"


def _python_path(ours: str) -> str:
    """Return where Python looks for packages: first in `ours`, then where this process looks."""
    inherited = [str(Path(each).absolute()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return os.pathsep.join([ours, *inherited])


def _described(  # noqa: PLR0913 - what makes up a container
    command: Sequence[str],
    environment: Mapping[str, str],
    mounts: Sequence[tuple[str, str, bool]],
    root: Path,
    *,
    cgroup: str = "",
    user: int | None = None,
) -> str:
    """Return the argument of `real_gpus.inside`.

    Where there are mounts, Python finds this package in the folder `/gpushare` of the container: another user may not
    be able to read the path of the folder on the machine.
    """
    described = {
        "command": command,
        "environment": {**environment, "PYTHONPATH": _python_path(_IN_CONTAINER if mounts else str(_PACKAGES))},
        "cgroup": cgroup,
        "root": str(root),
        "mounts": [*mounts, (_IN_CONTAINER, str(_PACKAGES), True)] if mounts else [],
        "user": os.geteuid() if user is None else user,
    }
    return json.dumps(described)


async def inside(  # noqa: PLR0913 - what makes up a container
    command: Sequence[str],
    environment: Mapping[str, str],
    mounts: Sequence[tuple[str, str, bool]],
    root: Path,
    errors: Path,
    *,
    cgroup: str = "",
    user: int | None = None,
) -> asyncio.subprocess.Process:
    """Start `command` with mounts of its own; `root` is an empty folder, and `errors` the file for what it prints."""
    with errors.open("wb") as stream:
        return await asyncio.create_subprocess_exec(
            *_INSIDE,
            _described(command, environment, mounts, root, cgroup=cgroup, user=user),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stream,
        )
