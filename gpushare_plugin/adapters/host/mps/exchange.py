"""Where `gpushare run` and `gpushare mps` meet: files in the MPS root say what is desired and what is served.

The plugin alone decides and writes `wanted.json`; `gpushare mps` only does it and writes `status.json`.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpushare_plugin.adapters.host.exchange import UUID, AgentStatus, ExchangeError, Message, SharedDirectory, Uuid
from gpushare_plugin.foundation.files.socket_path import why_too_long

_LONGEST_SOCKET_NAME = "control_privileged"
"""The longest of the sockets that nvidia-cuda-mps-control makes (seen with version 535)."""


def is_uuid(text: str) -> bool:
    """Return whether a text is the UUID of a GPU."""
    return re.fullmatch(UUID, text) is not None


class MpsRoot(SharedDirectory, frozen=True):
    """The MPS root directory, `flags.mpsRoot`, which both processes and all containers see at the same path."""

    @property
    def modes(self) -> Path:
        """The compute modes that GPUs had before."""
        return self.path / "modes.json"

    @property
    def lock(self) -> Path:
        """Locked while `gpushare mps` lives."""
        return self.path / "gpushare-mps.lock"

    @property
    def pipe(self) -> Path:
        """Sockets of the control daemon, which containers of pods need to see."""
        return self.path / "pipe"

    @property
    def log(self) -> Path:
        """Logs of the control daemon and its servers."""
        return self.path / "log"

    @property
    def shm(self) -> Path:
        """What servers and their clients share: /dev/shm of either."""
        return self.path / "shm"

    def refuse_long_path(self) -> None:
        """Raise ExchangeError for a root with too long a path for the control daemon's sockets."""
        if reason := why_too_long(self.path, f"pipe/{_LONGEST_SOCKET_NAME}", "the MPS root"):
            raise ExchangeError(f"{reason}: choose a shorter one")


class MpsGpu(BaseModel):
    """One GPU under MPS; no process gets more than `memory_limit_mib` MiB of it, None for no limit."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    uuid: Uuid
    memory_limit_mib: Annotated[int, Field(ge=1)] | None = None


class MpsSettings(Message):
    """The GPUs that are to be under MPS, or are.

    `active_thread_percentage` is the most of a GPU's threads that a process may use; None is the same as 100.
    """

    gpus: tuple[MpsGpu, ...] = ()
    active_thread_percentage: Annotated[int, Field(ge=1, le=100)] | None = None

    @model_validator(mode="after")
    def _refuse_twice(self) -> Self:
        if len(self.uuids) < len(self.gpus):
            raise ValueError("the same GPU is listed more than once")
        return self

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of the GPUs."""
        return frozenset(gpu.uuid for gpu in self.gpus)

    def without(self, uuids: Iterable[str]) -> "MpsSettings":
        """Return the same less these GPUs."""
        gone = frozenset(uuids)
        return self.model_copy(update={"gpus": tuple(gpu for gpu in self.gpus if gpu.uuid not in gone)})


class MpsStatus(AgentStatus):
    """What `gpushare mps` serves: the GPUs under MPS with their limits, and why a GPU that is desired is not served.

    `trouble` is what keeps `gpushare mps` from reading what is desired.
    """

    in_force: MpsSettings = MpsSettings()
    not_served: dict[Uuid, str] = Field(default_factory=dict)
    trouble: str | None = None

    def why_not(self, gpu: MpsGpu, active_thread_percentage: int | None) -> str | None:
        """Return why a GPU is not served as desired, None if it is."""
        if gpu.uuid in self.not_served:
            return self.not_served[gpu.uuid]
        if gpu in self.in_force.gpus and self.in_force.active_thread_percentage == active_thread_percentage:
            return None
        if self.trouble is not None:
            return self.trouble
        what = "set the limits of" if gpu.uuid in self.in_force.uuids else "started to serve"
        return f"gpushare mps has not {what} this GPU yet"


class RememberedModes(Message):
    """The compute mode, as NVML numbers them, that each GPU had before it came under MPS."""

    modes: dict[Uuid, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
