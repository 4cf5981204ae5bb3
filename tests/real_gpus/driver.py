"""A stand-in for the driver under the stand-in for CUDA: the memory that programs take counts for their cgroups.

NVML shows the programs and their memory.
"""

import itertools
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.gpus.memory_limits import LimitError
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.testing.cgroups import processes_of
from gpushare_plugin.testing.nvml import FakeNvml, FakeProcess
from gpushare_plugin.testing.nvml.memory import HeldMemory

_PEER = struct.Struct("3i")
_REFUSED = -1


class Driver:
    """Answers library.c, which asks for one thing a line: what, the UUID of the GPU, and a number."""

    def __init__(self, nvml: FakeNvml, cgroups: Path) -> None:
        """Count memory as `nvml` does, for the cgroups of processes below `cgroups`."""
        self._nvml, self._cgroups = nvml, cgroups
        self._limits = NvmlMemoryLimits(cgroups / "nowhere")
        self._ids = itertools.count()
        self._taken: dict[int, HeldMemory] = {}
        self._used: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    def serve(self, connection: socket.socket) -> None:
        """Answer one process until it ends, which frees its memory."""
        pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        cgroup = next((each.parent for each in self._processes() if pid in processes_of(each.parent)), None)
        held: list[int] = []
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                what, uuid, number = line.split()
                with self._lock:
                    answer = self._answer(what, uuid, int(number), cgroup, held)
                    if what == "take" and answer != _REFUSED:
                        self._show(uuid, pid, int(number) // MIB)
                lines.write(f"{answer}\n")
                lines.flush()
        with self._lock:
            for each in held:
                self._taken[each].free()

    def _show(self, uuid: str, pid: int, mib: int) -> None:
        """Let NVML show that the process `pid` uses `mib` more; what a program gives back still counts here."""
        self._used[uuid, pid] += mib
        self._nvml.leave(uuid)
        for (used, user), amount in self._used.items():
            if used == uuid:
                self._nvml.use(uuid, FakeProcess(user, amount))

    def _processes(self) -> Iterator[Path]:
        return self._cgroups.rglob("cgroup.procs")

    def _answer(self, what: str, uuid: str, number: int, cgroup: Path | None, held: list[int]) -> int:
        """Return the answer; `held` are the numbers of the memory that the process has."""
        match what:
            case "limit":
                return self._limit(uuid, cgroup)
            case "free":
                held.remove(number)
                self._taken[number].free()
                return number
            case "share":
                self._taken[number].share()
                held.append(number)
                return number
        gpu = next(index for index, each in enumerate(self._nvml.gpus) if each.uuid == uuid)
        made = self._nvml.allocate(gpu, cgroup, number // MIB, managed=what == "manage")
        if made is None:
            return _REFUSED
        held.append(next(self._ids))
        self._taken[held[-1]] = made
        return held[-1]

    def _limit(self, uuid: str, cgroup: Path | None) -> int:
        """Return the hard limit of a cgroup in bytes, which CUDA tells as all of the memory."""
        if cgroup is None:
            return _REFUSED
        try:
            hard = self._limits.read(uuid, cgroup).limit.hard
        except LimitError:
            return _REFUSED
        return _REFUSED if hard is None else hard


@contextmanager
def serving(driver: Driver, path: Path) -> Iterator[None]:
    """Answer processes at the socket `path`, each in a thread; the end waits for the ends of the processes."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            driver.serve(self.request)

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
