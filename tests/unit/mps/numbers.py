"""A program for a namespace of processes of its own, where two processes get the same number, one after the other."""

import os
import subprocess
import time
from pathlib import Path

from gpushare_plugin.mps.processes import MpsProcess, servers

PIPE = Path("/nowhere")
TICK = 0.01
"""Seconds: the kernel tells when a process began in hundredths (proc_pid_stat(5))."""


def start() -> subprocess.Popen[bytes]:
    """Start what looks like a server."""
    command = ["bash", "-c", "exec -a nvidia-cuda-mps-server sleep 60"]
    child = subprocess.Popen(command, env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(PIPE)})
    while not servers(PIPE):
        time.sleep(TICK)
    return child


def found() -> MpsProcess:
    """Return the one that runs."""
    (process,) = servers(PIPE)
    return process


def main() -> None:
    """Start one, end it, start another of the same number, and tell which of them is alive."""
    child = start()
    first = found()
    child.kill()
    child.wait()
    began = time.monotonic()
    while time.monotonic() < began + 2 * TICK:
        time.sleep(TICK)
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
    with start() as child:
        second = found()
        assert second.pid == first.pid
        print(f"the first: {first.alive}, the second: {second.alive}")  # noqa: T201 - what it is for
        child.kill()


if __name__ == "__main__":
    main()
