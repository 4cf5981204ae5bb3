"""Real processes, shown in a file tree like /proc as processes of containers, without real cgroups of pods."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpushare_plugin.core.usage import Owner
from tests.waiting import until_blocking

_MAPPING = """\
import mmap, sys
with open(sys.argv[1], "rb") as file:
    kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(flush=True)
sys.stdin.read()
"""
"""A program that has a file mapped until its standard input ends."""


class ShownProcesses:
    """Processes that run until the end of the test, and a file tree that has what the kernel says of them."""

    def __init__(self, procfs: Path) -> None:
        """Show the processes in `procfs`."""
        self.procfs = procfs
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, owner: Owner, environment: Mapping[str, str], mapped: Path | None = None) -> int:
        """Start a process of a container, perhaps with a file mapped into it; return its number."""
        command = ["/bin/sleep", "600"] if mapped is None else [sys.executable, "-S", "-c", _MAPPING, str(mapped)]
        child = subprocess.Popen(command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._children.append(child)
        if mapped is not None:
            assert child.stdout is not None
            child.stdout.readline()
        until_blocking(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes().startswith(command[0].encode()))
        self.show(child.pid, owner)
        return child.pid

    def show(self, pid: int, owner: Owner, environment: Mapping[str, str] | None = None) -> None:
        """Show a process of this machine as one of a container, perhaps with the `environment` that it has there."""
        folder = self.procfs / str(pid)
        folder.mkdir(parents=True)
        for name in ("stat", "environ", "maps"):
            (folder / name).symlink_to(f"/proc/{pid}/{name}")
        (folder / "cgroup").write_text(f"0::/kubepods/pod{owner.pod_uid}/{owner.container_id}\n")
        if environment is not None:
            (folder / "environ").unlink()
            (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))

    def end(self) -> None:
        """End all processes."""
        for child in self._children:
            child.kill()
            child.communicate()


@contextmanager
def shown_processes(procfs: Path) -> Iterator[ShownProcesses]:
    """Yield what starts processes; all of them end with the block."""
    processes = ShownProcesses(procfs)
    try:
        yield processes
    finally:
        processes.end()
