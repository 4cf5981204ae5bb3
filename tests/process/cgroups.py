"""Processes in real cgroups; skips a test where this machine has none for it."""

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import pytest

from gpushare_plugin.gpus.containers import why_unknown
from tests.waiting import until_blocking

HIERARCHIES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")


class Start(Protocol):
    """Starts processes in cgroups."""

    def __call__(self, path: str, environment: Mapping[str, str] | None = None) -> int:
        """Start a process in a cgroup of this path, empty for none, and return its ID.

        Without an environment the process has that of the test.
        """
        ...


def made_cgroup() -> Path:
    """Return a new cgroup of this test; skips where none can be made."""
    for hierarchy in HIERARCHIES:
        made = Path(hierarchy, f"gpushare-test-{uuid.uuid4()}")
        with suppress(OSError):
            made.mkdir()
            if (made / "cgroup.procs").exists():
                return made
            made.rmdir()
    pytest.skip("cgroups cannot be made here")


@contextmanager
def in_cgroups() -> Iterator[Start]:
    """Yield what starts processes in cgroups named as a container runtime does; all of them end with the block."""
    if (reason := why_unknown(Path("/proc"))) is not None:
        pytest.skip(reason)
    root = made_cgroup()
    children: list[subprocess.Popen[bytes]] = []

    def begin(path: str, environment: Mapping[str, str] | None = None) -> int:
        child = subprocess.Popen(["/bin/sleep", "600"], env=environment)
        children.append(child)
        if path:
            (root / path).mkdir(parents=True, exist_ok=True)
            (root / path / "cgroup.procs").write_text(str(child.pid))
        return child.pid

    with ExitStack() as stack:
        stack.callback(remove, root)
        try:
            yield begin
        finally:
            for child in children:
                child.kill()
                child.wait()


def remove(root: Path) -> None:
    """Remove cgroups, as soon as the kernel knows that their processes ended."""

    def removed() -> bool:
        with suppress(OSError):
            for folder, _, _ in os.walk(root, topdown=False):
                Path(folder).rmdir()
        return not root.exists()

    until_blocking(removed)
