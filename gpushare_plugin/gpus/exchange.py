"""Files exchanged by two daemons of a node through a shared directory; each file has a single writer.

`gpushare run` writes the desired state. The other daemon, such as `gpushare mps` or `gpushare mig`, writes its status,
which counts while the daemon holds its lock. The versions of the two daemons may differ: a reader ignores unknown keys,
and a change of meaning needs another `version`.
"""

from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.lock import LockedError, is_locked, lock
from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.files.replacement import replace_file
from gpushare_plugin.base.structs import Struct

LARGEST_FILE = 1 << 18
"""The size limit of a file about the GPUs of a node, in bytes; no node of any size needs more."""

UUID = r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
"""A regular expression for the UUID of a card."""

Uuid = Annotated[str, Field(pattern=UUID)]
"""The UUID of a card."""


class ExchangeError(GpushareError):
    """A file or directory of the exchange cannot be used; the message gives its path and the reason."""


class AlreadyRunningError(GpushareError):
    """Another process of gpushare uses the directory; the message names process, directory and remedy."""


class SharedDirectory(Struct, frozen=True):
    """A directory of the host in which `gpushare run` and another daemon exchange files."""

    program: ClassVar[str]
    """The command of the other daemon, such as `gpushare mig`."""
    title: ClassVar[str]
    """The name of the directory in messages."""
    started_by: ClassVar[str]
    """The value of the chart that starts the other daemon."""

    path: Path
    """The path of the directory."""

    @property
    def wanted(self) -> Path:
        """The file with the desired state, written by `gpushare run`."""
        return self.path / "wanted.json"

    @property
    def status(self) -> Path:
        """The file with the status, written by the other daemon."""
        return self.path / "status.json"

    @property
    def ready(self) -> Path:
        """A file present while the desired state is reached, for the readiness probe of the other daemon's pod."""
        return self.path / "ready"

    @property
    def lock(self) -> Path:
        """The lock file of the other daemon, locked while the process lives."""
        return self.path / f"{self.program.replace(' ', '-')}.lock"

    @property
    def only(self) -> Path:
        """The lock file of the directory, locked while any program except `gpushare run` uses the directory."""
        return self.path / "gpushare.lock"

    @property
    def alive(self) -> Path:
        """A file touched regularly while the other daemon works, for the liveness probe of the daemon's pod."""
        return self.path / "alive"


def take(directory: SharedDirectory, *earlier: Path) -> AbstractContextManager[object]:
    """Create the directory of a daemon if needed, take its locks, and remove the files of `earlier` processes.

    The locks last until the context ends. Raises AlreadyRunningError, and ExchangeError where the directory cannot be
    used.
    """
    with ExitStack() as locks:
        try:
            directory.path.mkdir(parents=True, exist_ok=True)
            _take_locks(directory, locks)
            for file in earlier:
                file.unlink(missing_ok=True)
            directory.path.chmod(0o755)  # whatever the umask
        except OSError as error:
            raise ExchangeError(f"the {directory.title} {directory.path} cannot be used: {error}") from error
        return locks.pop_all()


def _take_locks(directory: SharedDirectory, locks: ExitStack) -> None:
    try:
        locks.enter_context(lock(directory.lock))
    except LockedError as error:
        raise AlreadyRunningError(
            f"another {directory.program}{error.holder} uses {directory.path}; only one can run for each "
            f"{directory.title}: stop it first"
        ) from None
    try:
        # The second lock is the same for all programs and for all paths to the directory.
        locks.enter_context(lock(directory.only))
    except LockedError as error:
        raise AlreadyRunningError(
            f"another program of gpushare{error.holder} uses {directory.path}, and {_ONE_DIRECTORY}"
        ) from None


def refuse_one_directory(one: SharedDirectory, other: SharedDirectory) -> None:
    """Raise ExchangeError if two directories are the same, or one contains the other; links are followed."""
    first, second = one.path.resolve(), other.path.resolve()
    if first.is_relative_to(second) or second.is_relative_to(first) or _same(first, second):
        raise ExchangeError(
            f"{one.path} and {other.path} lead to one directory, or into one another, and {_ONE_DIRECTORY}"
        )


_ONE_DIRECTORY = (
    "each overwrites files of the other in the same directory: set two directories beside each other as MPS root "
    "(flags.mpsRoot, --mps-root), MIG root (--mig-root) or root of driver limits (--driver-limits-root)"
)


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same directory, for example a directory mounted twice."""
    try:
        return one.samefile(other)
    except OSError:
        return False  # a missing directory is not mounted


class MessagePart(BaseModel):
    """A part of a message, such as what a file says of one GPU."""

    # Most nodes use few of the models: each is built when it is first used, not when the daemon starts.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)


class Message(MessagePart):
    """The content of a file of the exchange."""

    largest: ClassVar[int] = LARGEST_FILE
    """The size limit of the file in bytes."""

    version: Literal[1] = 1
    """The version of the meaning of the content; a reader rejects any other version."""


class AgentStatus(Message):
    """The status of the other daemon."""

    since: str = ""
    """The time of the last change of the status, in UTC by ISO 8601."""


AnyMessage = TypeVar("AnyMessage", bound=Message)
AnyStatus = TypeVar("AnyStatus", bound=AgentStatus)


def read_message(file: Path, kind: type[AnyMessage]) -> AnyMessage | None:
    """Return the content of `file`, None if the file does not exist; raises ExchangeError for any other problem."""
    try:
        # Regular files only: a pipe would make the reader wait, and a link would lead to another file.
        content = read_regular(file, kind.largest + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ExchangeError(f"{file} cannot be read: {error.strerror or error}") from error
    if len(content) > kind.largest:
        raise ExchangeError(f"{file} has more than {kind.largest} bytes, which gpushare never writes; remove it")
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
    """Replace `file` in one step, so that no reader sees half of `message`; raises ExchangeError."""
    try:
        replace_file(file, message.model_dump_json(indent=1))
    except OSError as error:
        raise ExchangeError(f"{file} cannot be written: {error.strerror or error}") from error


class StatusFile:
    """Writes the status of a daemon after every change, and keeps the file `ready` while all work is done."""

    def __init__(self, directory: SharedDirectory) -> None:
        """Write to `status` and `ready` of `directory`."""
        self._directory = directory
        self._written: AgentStatus | None = None

    def write(self, status: AgentStatus, *, ready: bool) -> None:
        """Write `status` if changed, and create or remove the file `ready`.

        Raises ExchangeError or OSError; then the next call tries again.
        """
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
        """Remove the status and the file `ready`."""
        for file in (self._directory.status, self._directory.ready):
            file.unlink(missing_ok=True)
        self._written = None


class DesiredFile(Generic[AnyMessage]):
    """Reads what `gpushare run` desires again and again; an unreadable file leaves the desired state unchanged."""

    def __init__(self, file: Path, kind: type[AnyMessage]) -> None:
        """Read messages of this `kind` from `file`; a missing file is the same as an empty message."""
        self.file = file
        """The path of the file."""
        self._kind = kind
        self.message = kind()
        """The desired state by the last successful look; an empty message before."""
        self.known = False
        """Whether a look has succeeded; a look that finds no file is one, too."""
        self.missing = False
        """Whether the last successful look found no file."""
        self.problem: str | None = None
        """Why the file could not be read at the last look; None after a successful look."""

    def read(self) -> bool:
        """Read the file; return whether the desired state has changed.

        Raises ExchangeError for a problem that the look before did not have.
        """
        try:
            found = read_message(self.file, self._kind)
        except ExchangeError as error:
            before, self.problem = self.problem, str(error)
            if self.problem != before:
                raise
            return False
        self.problem, self.known, self.missing = None, True, found is None
        message_before, self.message = self.message, found or self._kind()
        return self.message != message_before


class SeenAgent(Struct, Generic[AnyStatus], frozen=True):
    """What `gpushare run` sees of another daemon at one moment."""

    status: AnyStatus | None = None
    """The status; None while the daemon does not run, or without a readable status."""
    runs: bool | None = None
    """Whether the daemon runs; None where that cannot be read."""
    trouble: str | None = None
    """Why the daemon does not do what is wanted, whatever its status; None without a problem."""


class AgentFiles(Generic[AnyStatus]):
    """Writes for another daemon what `gpushare run` wants, and reads the status of the daemon."""

    def __init__(self, directory: SharedDirectory, kind: type[AnyStatus]) -> None:
        """Exchange files in `directory`; the status is of this `kind`."""
        self._directory = directory
        self._kind = kind
        self.trouble: str | None = None
        """Why the last message could not be written; None after a success."""

    def write(self, wanted: Message) -> None:
        """Write what is wanted. Raises ExchangeError for a problem that the write before did not have."""
        before, self.trouble = self.trouble, None
        try:
            self._directory.path.mkdir(parents=True, exist_ok=True)
            write_message(self._directory.wanted, wanted)
        except (OSError, ExchangeError) as error:
            self.trouble = f"what is wanted cannot be written for {self._directory.program}: {error}"
            if self.trouble != before:
                raise ExchangeError(self.trouble) from error

    def look(self) -> SeenAgent[AnyStatus]:
        """Return what is to be seen of the daemon now."""
        directory = self._directory
        try:
            if is_locked(directory.lock):
                return SeenAgent(read_message(directory.status, self._kind), runs=True, trouble=self.trouble)
        except (OSError, ExchangeError) as error:
            return SeenAgent(trouble=self.trouble or f"the status of {directory.program} cannot be read: {error}")
        absent = (
            f"{directory.program} does not run on this node, or uses another {directory.title} than {directory.path}; "
            f"in the chart, {directory.started_by}: true starts it"
        )
        return SeenAgent(runs=False, trouble=self.trouble or absent)
