"""The file system of the node, read below any root: bounded, and without a way out of the root by symbolic links.

In a pod the node is mounted somewhere, and links such as `/var/run` lead to absolute paths of the node. The kernel
resolves a link at the root of this process, so links are resolved here instead.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.lock import is_locked
from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.text import in_words

LARGEST_FILE = 4 << 20
"""Bytes of the largest file that is read; NVIDIA's specification for sixteen GPUs has some 100,000."""
MOST_ENTRIES = 4096
"""The most names of a directory that are looked at."""
_MOST_LINKS = 40
"""As many symbolic links as the kernel follows in one path (path_resolution(7))."""
_SEARCH_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where a service of systemd looks for a program without a directory (systemd.exec(5), "PATH")."""
_TOO_MANY_LINKS = Path("too many symbolic links/no file")


class UnreadableError(GpushareError):
    """A file of the node is there and cannot be read; the message says which and why."""


class HostRoot:
    """The root of the node's file system; all paths are absolute paths of the node."""

    def __init__(self, root: Path) -> None:
        """Read below the directory `root`."""
        self.root = root
        self.refused: set[str] = set()
        """The paths of the node that this process may not read; grows while the node is looked at."""

    @property
    def is_own(self) -> bool:
        """Whether the root is that of this process."""
        return self.root == Path("/")

    @contextlib.contextmanager
    def refusals(self) -> Iterator[set[str]]:
        """Yield a set that ends with the paths which this process may not read, of those read within the context."""
        before, self.refused = self.refused, set()
        meanwhile = self.refused
        try:
            yield meanwhile
        finally:
            self.refused = before | meanwhile

    def resolved(self, path: str) -> Path:
        """Return where this process finds `path`, whether or not a file is there.

        With more links than the kernel follows, that is a place where nothing is.
        """
        todo = [part for part in reversed(path.split("/")) if part]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part in {".", ".."}:
                done = done[:-1] if part == ".." else done
                continue
            target = self._link(self.root.joinpath(*done, part))
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                return self.root / _TOO_MANY_LINKS
            done = [] if target.startswith("/") else done
            todo += [each for each in reversed(target.split("/")) if each]
        return self.root.joinpath(*done)

    def followed(self, place: Path) -> Path:
        """Return where the file at `place`, below the root, is when its links are followed on the node."""
        return self.resolved(f"/{place.relative_to(self.root)}")

    def target(self, path: str) -> str:
        """Return the path of the node that `path` leads to by its links."""
        return f"/{self.resolved(path).relative_to(self.root)}"

    def exists(self, path: str) -> bool:
        """Return whether anything is at `path`; what cannot be looked at counts as missing."""
        return self._status(path) is not None

    def is_directory(self, path: str) -> bool:
        """Return whether a directory is at `path`."""
        found = self._status(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_socket(self, path: str) -> bool:
        """Return whether a Unix socket is at `path`."""
        found = self._status(path)
        return found is not None and stat.S_ISSOCK(found.st_mode)

    def text(self, path: str, most: int = LARGEST_FILE) -> str | None:
        """Return the text of the file at `path`, None without a file; bytes that are no UTF-8 are replaced.

        Raises UnreadableError for anything but a regular file of at most `most` bytes.
        """
        try:
            content = read_regular(self.resolved(path), most + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self.note(path, error)
            raise UnreadableError(f"{path} cannot be read: {_reason(error)}") from error
        if len(content) > most:
            raise UnreadableError(f"{path} has more than {most} bytes, more than is read")
        return content.decode(errors="replace")

    def line(self, path: str) -> str:
        """Return a file of the kernel or of a program without surrounding space; empty if missing or unreadable."""
        try:
            return (self.text(path) or "").strip()
        except UnreadableError:
            return ""

    def names(self, directory: str, pattern: str = "*") -> tuple[str, ...]:
        """Return the sorted names in a directory that match `pattern`; none if the directory cannot be listed.

        More than `MOST_ENTRIES` names are left out.
        """
        try:
            with os.scandir(self.resolved(directory)) as entries:
                found = [entry.name for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False)]
        except (OSError, ValueError) as error:
            self.note(directory, error)
            return ()
        return tuple(sorted(name for name in found if fnmatchcase(name, pattern)))

    def matching(self, pattern: str) -> Iterator[str]:
        """Yield the files whose path is `pattern`, in which the last part may have wildcards."""
        directory, _, name = pattern.rpartition("/")
        if "*" in name or "?" in name:
            yield from (f"{directory}/{each}" for each in self.names(directory, name))
        elif self.exists(pattern):
            yield pattern

    def first(self, *paths: str) -> str | None:
        """Return the first of `paths` at which anything is, None without any."""
        return next((path for path in paths if self.exists(path)), None)

    def has_program(self, program: str, *more: str) -> bool:
        """Return whether a service finds a program; one without a directory may also be in the folders `more`."""
        folders = () if "/" in program else (*more, *_SEARCH_PATH)
        return self.first(*(f"{folder}/{program}" for folder in folders) if folders else (program,)) is not None

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return self.resolved(path).stat(follow_symlinks=False)
        except (OSError, ValueError) as error:
            self.note(path, error)
            return None

    def note(self, path: str, error: BaseException | None) -> None:
        """Remember `path` in `refused` if `error` says that this process lacks the right."""
        if isinstance(error, PermissionError):
            self.refused.add(path)

    @staticmethod
    def _link(path: Path) -> str | None:
        """Return where the symbolic link at `path` leads; None for anything else."""
        try:
            return str(path.readlink())
        except (OSError, ValueError):
            return None


def locked(place: Path) -> bool | None:
    """Return whether a program holds the lock on the file at `place`; None where that cannot be seen."""
    try:
        return is_locked(place)
    except OSError:
        return None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or in_words(error)
