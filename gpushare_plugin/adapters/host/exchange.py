"""How two daemons of a node meet: files in a directory that both see, of which each is written by one of them.

`gpushare run` writes what is wanted, and the other one what it has done, which counts while that one holds the lock.
Either may be of another version than the other, so keys that are not known are passed over; a change of meaning takes
another `version`.
"""

import os
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.files.lock import LockedError, lock
from gpushare_plugin.foundation.files.regular_file import read_regular
from gpushare_plugin.foundation.structs import Struct

LARGEST_FILE = 1 << 18
"""Bytes; more than a node of any size needs."""

UUID = r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

Uuid = Annotated[str, Field(pattern=UUID)]


class ExchangeError(GpushareError):
    """A file of the exchange cannot be read or written; the message says which, why and what to do."""


class AlreadyRunningError(GpushareError):
    """Another process of the same kind has the directory; the message names both and what to do."""


class SharedDirectory(Struct, frozen=True):
    """A directory of the host in which `gpushare run` and another daemon exchange files."""

    path: Path

    @property
    def wanted(self) -> Path:
        """What `gpushare run` desires."""
        return self.path / "wanted.json"

    @property
    def status(self) -> Path:
        """What the other daemon has done."""
        return self.path / "status.json"

    @property
    def ready(self) -> Path:
        """There while everything that is desired is done, for the readiness probe of the pod."""
        return self.path / "ready"

    @property
    def only(self) -> Path:
        """Locked while any program but `gpushare run` uses the directory."""
        return self.path / "gpushare.lock"

    @property
    def alive(self) -> Path:
        """Touched every few seconds while the other daemon works, for the liveness probe of its pod."""
        return self.path / "alive"


def take(directory: SharedDirectory, lock_file: Path, program: str, what: str) -> AbstractContextManager[object]:
    """Take the locks of a directory, which is made if need be, for `program`; `what` is its name in messages.

    Raises AlreadyRunningError, and ExchangeError where the directory cannot be used.
    """
    with ExitStack() as locks:
        try:
            directory.path.mkdir(parents=True, exist_ok=True)
            locks.enter_context(lock(lock_file))
        except LockedError as error:
            raise AlreadyRunningError(
                f"another {program}{error.holder} uses {directory.path}; only one can run for each {what}: "
                "stop it first"
            ) from None
        except OSError as error:
            raise ExchangeError(f"the {what} {directory.path} cannot be used: {error}") from error
        try:
            # Whatever path leads here, and whichever program it is.
            locks.enter_context(lock(directory.only))
        except LockedError as error:
            raise AlreadyRunningError(
                f"another program of gpushare{error.holder} uses {directory.path}, and {_ONE_DIRECTORY}"
            ) from None
        except OSError as error:
            raise ExchangeError(f"the {what} {directory.path} cannot be used: {error}") from error
        return locks.pop_all()


def refuse_one_directory(one: SharedDirectory, other: SharedDirectory) -> None:
    """Raise ExchangeError where two directories are one, or one is within the other, by whatever links."""
    first, second = one.path.resolve(), other.path.resolve()
    if first.is_relative_to(second) or second.is_relative_to(first) or _same(first, second):
        raise ExchangeError(
            f"{one.path} and {other.path} lead to one directory, or into one another, and {_ONE_DIRECTORY}"
        )


_ONE_DIRECTORY = (
    "each overwrites files of the other in the same directory: set the MPS root (flags.mpsRoot, --mps-root) and the "
    "MIG root (--mig-root) to two directories beside each other"
)


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths are one directory, such as one that is mounted twice."""
    try:
        return one.samefile(other)
    except OSError:
        return False  # what is not there yet is not mounted


class Message(BaseModel):
    """What a file of the exchange has."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    version: Literal[1] = 1


class AgentStatus(Message):
    """What a daemon has done; `since` is when this came to be so, as ISO 8601 in UTC."""

    since: str = ""


AnyMessage = TypeVar("AnyMessage", bound=Message)


def read_message(file: Path, kind: type[AnyMessage]) -> AnyMessage | None:
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
            f"{file} has content that this version of gpushare does not accept ({wrong}); check that all daemons of "
            "gpushare on this node have the same version, and that nothing else writes this file"
        ) from error


def write_message(file: Path, message: Message) -> None:
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


class StatusFile:
    """The status of a daemon, written when it is another than before, and a file that is there while all is done."""

    def __init__(self, directory: SharedDirectory) -> None:
        """Write to `status` and `ready` of `directory`."""
        self._directory = directory
        self._written: AgentStatus | None = None

    def write(self, status: AgentStatus, *, ready: bool) -> None:
        """Report a status; raises ExchangeError or OSError, and tries again the next time."""
        if self._written is not None and status == self._written.model_copy(update={"since": ""}):
            return
        status = status.model_copy(update={"since": datetime.now(UTC).isoformat(timespec="seconds")})
        write_message(self._directory.status, status)
        if ready:
            self._directory.ready.touch()
        else:
            self._directory.ready.unlink(missing_ok=True)
        self._written = status

    def withdraw(self) -> None:
        """Report nothing any more."""
        for file in (self._directory.status, self._directory.ready):
            file.unlink(missing_ok=True)
        self._written = None
