"""What a process gets that uses MPS: the limits of its server or namespace, and its own, which can only tighten them.

Sources: NVIDIA, "Multi-Process Service", appendix on environment variables, for limits of a process (a process can only
tighten what the control daemon holds it to), and for their form (as CUDA_VISIBLE_DEVICES: numbers or UUIDs). A list
that names a GPU that the process does not see lifts every limit of memory, and leaves that of threads: measured with
protocol 3 and driver 615 (documentation of NVIDIA Dynamo, "Per-GPU Compute and Memory Limits with MPS", which also says
that the smaller of two limits counts), and seen with protocol 2 on an H100 with driver 580.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

_MIB = {"K": 1 / 1024, "M": 1, "G": 1024}


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A process that uses MPS, as it describes itself when it connects."""

    pid: int
    command: str
    devices: list[str]
    """The UUIDs of the GPUs that the process sees, in its order."""
    memory: str = ""
    """The value of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT."""
    threads: str = ""
    """The value of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE."""


class Effective(TypedDict):
    """What a process gets: MiB of each GPU that it sees, None for no limit, and percent of the threads."""

    memory_mib: dict[str, int | None]
    threads: float


def effective(client: ConnectedClient, memory_mib: Mapping[str, int | None], threads: float) -> Effective:
    """Return what a client gets, with limits of its server or namespace by GPU, and its own ones."""
    own = _own(client)
    memory = (
        dict.fromkeys(client.devices)
        if own is None
        else {uuid: _smaller(memory_mib.get(uuid), own.get(uuid)) for uuid in client.devices}
    )
    return {"memory_mib": memory, "threads": min(threads, float(client.threads or 100))}


def amount_mib(text: str) -> int:
    """Return the MiB of an amount such as 4G, in binary units; raises ValueError."""
    if (found := re.fullmatch(r"(\d+)([KMG])B?", text)) is None:
        raise ValueError(text)
    return int(int(found[1]) * _MIB[found[2]])


def _own(client: ConnectedClient) -> dict[str, int] | None:
    """Return the limits of a process by GPU; None where its list names a GPU that it does not see."""
    limits = {}
    for entry in filter(None, client.memory.split(",")):
        key, _, amount = entry.partition("=")
        named = client.devices[int(key) : int(key) + 1] if key.isdecimal() else [key] if key in client.devices else []
        if not named:
            return None
        limits[named[0]] = amount_mib(amount)
    return limits


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
