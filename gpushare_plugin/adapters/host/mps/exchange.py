"""Where `gpushare run` and `gpushare mps` meet: files in the MPS root say what is desired and what is served.

The plugin alone decides and writes `wanted.json`; `gpushare mps` only does it and writes `status.json`, which counts
while the lock is held. Either may be of another version than the other, so keys that are not known are passed over;
a change of meaning takes another `version`.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.files.regular_file import read_regular
from gpushare_plugin.foundation.files.socket_path import why_too_long
from gpushare_plugin.foundation.structs import Struct

LARGEST_FILE = 1 << 18
"""Bytes; more than a node of any size needs."""

_LONGEST_SOCKET_NAME = "control_privileged"
"""The longest of the sockets that nvidia-cuda-mps-control makes (seen with version 535)."""

_UUID = r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

Uuid = Annotated[str, Field(pattern=_UUID)]


def is_uuid(text: str) -> bool:
    """Return whether a text is the UUID of a GPU."""
    return re.fullmatch(_UUID, text) is not None


class ExchangeError(GpushareError):
    """A file of the exchange cannot be read or written; the message says which, why and what to do."""


class MpsRoot(Struct, frozen=True):
    """The MPS root directory, `flags.mpsRoot`, which both processes and all containers see at the same path."""

    path: Path

    @property
    def wanted(self) -> Path:
        """What the plugin desires."""
        return self.path / "wanted.json"

    @property
    def status(self) -> Path:
        """What is served."""
        return self.path / "status.json"

    @property
    def ready(self) -> Path:
        """There while everything that is desired is served, for the readiness probe of the pod."""
        return self.path / "ready"

    @property
    def alive(self) -> Path:
        """Touched every few seconds while `gpushare mps` works, for the liveness probe of the pod."""
        return self.path / "alive"

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


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    version: Literal[1] = 1


class MpsGpu(BaseModel):
    """One GPU under MPS; no process gets more than `memory_limit_mib` MiB of it, None for no limit."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    uuid: Uuid
    memory_limit_mib: Annotated[int, Field(ge=1)] | None = None


class MpsSettings(_Message):
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


class MpsStatus(_Message):
    """What `gpushare mps` serves: the GPUs under MPS with their limits, and why a GPU that is desired is not served.

    `since` is when this came to be so, as ISO 8601 in UTC. `trouble` is what keeps `gpushare mps` from reading what is
    desired.
    """

    in_force: MpsSettings = MpsSettings()
    not_served: dict[Uuid, str] = Field(default_factory=dict)
    trouble: str | None = None
    since: str = ""

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


class RememberedModes(_Message):
    """The compute mode, as NVML numbers them, that each GPU had before it came under MPS."""

    modes: dict[Uuid, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)


Message = TypeVar("Message", bound=_Message)


def read_message(file: Path, kind: type[Message]) -> Message | None:
    """Return what `file` says, None where there is no such file; raises ExchangeError for anything else there."""
    try:
        # Whatever else lies there must neither make us wait (a pipe) nor lead us elsewhere (a link).
        content = read_regular(file, LARGEST_FILE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ExchangeError(f"{file} cannot be read: {error.strerror or error}") from error
    if len(content) > LARGEST_FILE:
        raise ExchangeError(f"{file} has more than {LARGEST_FILE} bytes, which gpushare never writes; remove it")
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'the whole file'}: {each['msg']}" for each in error.errors()[:3]
        )
        raise ExchangeError(
            f"{file} has content that this version of gpushare does not accept ({wrong}); check that gpushare run and "
            "gpushare mps have the same version, and that nothing else writes this file"
        ) from error


def write_message(file: Path, message: _Message) -> None:
    """Write `message` so that no reader sees half of it; raises ExchangeError."""
    new = file.with_name(f".{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(message.model_dump_json(indent=1))
        new.rename(file)
    except OSError as error:
        raise ExchangeError(f"{file} cannot be written: {error.strerror or error}") from error
