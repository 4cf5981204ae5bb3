"""A program under MPS: it connects by its environment, tells what it gets, and stays until its input ends.

It sees the GPUs that NVIDIA_VISIBLE_DEVICES names, as in a container, and of those what CUDA_VISIBLE_DEVICES leaves.
Without a socket where CUDA_MPS_PIPE_DIRECTORY says, it runs without MPS and without limits, as in compute mode DEFAULT
(documentation of NVIDIA Dynamo, "Per-GPU Compute and Memory Limits with MPS").
"""

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from gpushare_plugin.testing.mps_programs.wire import (
    CLIENT_HELLO,
    DEVICES_VARIABLE,
    LARGEST_MESSAGE,
    PIPE_VARIABLE,
    SOCKET,
    enlist,
)


def main() -> None:
    """Connect, print the limits as JSON, and stay connected until the input ends."""
    enlist(os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(str(Path(os.environ[PIPE_VARIABLE], SOCKET)))
        except OSError:
            answer = "null"
        else:
            connection.sendall(CLIENT_HELLO + json.dumps(_described(os.environ)).encode())
            answer = connection.recv(LARGEST_MESSAGE).decode()
        sys.stdout.write(f"{answer or 'null'}\n")
        sys.stdout.flush()
        sys.stdin.read()


def _described(environment: Mapping[str, str]) -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "command": "python client.py",
        "devices": visible(environment),
        "memory": environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""),
        "threads": environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""),
    }


def visible(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that a program with this environment sees, in its order."""
    present = list(filter(None, environment.get("NVIDIA_VISIBLE_DEVICES", "").split(",")))
    narrowed = environment.get(DEVICES_VARIABLE)
    if narrowed is None:
        return present
    named = [present[int(each)] if each.isdecimal() else each for each in narrowed.split(",")]
    return [each for each in named if each in present]


if __name__ == "__main__":
    main()
