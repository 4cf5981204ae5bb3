"""What a described node is made of, and how it is built below a directory."""

import contextlib
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpushare_plugin.base.structs import Struct, field, replace


class HostDescription(Struct, frozen=True):
    """The files, links and sockets of a node, all by their paths on the node."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The texts of files; programs and libraries are empty, because nobody runs them."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Where symbolic links lead; absolute ones from the root of the node."""
    directories: tuple[str, ...] = ()
    """Directories without files."""
    sockets: tuple[str, ...] = ()
    """Unix sockets at which a program listens."""
    nvml: tuple[str, ...] = ()
    """Files that are NVML's library, and can be loaded: the test kit's stand-in."""

    def __add__(self, more: "HostDescription") -> "HostDescription":
        """Return the node with everything of `more`; a file there replaces the same file here."""
        return HostDescription(
            {**self.files, **more.files},
            {**self.links, **more.links},
            (*self.directories, *more.directories),
            tuple(dict.fromkeys((*self.sockets, *more.sockets))),
            (*self.nvml, *more.nvml),
        )

    def without(self, *paths: str) -> "HostDescription":
        """Return the node without these files, links and sockets, and without everything below them."""

        def stays(path: str) -> bool:
            return not any(path == each or path.startswith(f"{each}/") for each in paths)

        return replace(
            self,
            files={path: text for path, text in self.files.items() if stays(path)},
            links={path: target for path, target in self.links.items() if stays(path)},
            directories=tuple(filter(stays, self.directories)),
            sockets=tuple(filter(stays, self.sockets)),
            nvml=tuple(filter(stays, self.nvml)),
        )

    def edited(self, path: str, old: str, new: str) -> "HostDescription":
        """Return the node with another text in a file; raises ValueError where `old` is not in the file."""
        if old not in self.files[path]:
            raise ValueError(f"{path} has no {old!r}")
        return self + HostDescription({path: self.files[path].replace(old, new)})


@contextlib.contextmanager
def built(host: HostDescription, folder: Path, library: Path | None = None) -> Iterator[Path]:
    """Build a node below `folder`, yield `folder`, and close the sockets at the end; the files stay.

    `library` is the stand-in for NVML's library, which is copied to the paths that the description names.
    """
    for path, target in host.links.items():
        _place(folder, path).symlink_to(target)
    for path in host.directories:
        _place(folder, path).mkdir(exist_ok=True)
    for path, text in host.files.items():
        _place(folder, path).write_text(text)
    for path in host.nvml:
        if library is None:
            _place(folder, path).touch()
        else:
            shutil.copy(library, _place(folder, path))
    with contextlib.ExitStack() as open_sockets:
        for path in host.sockets:
            listener = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(_place(folder, path)))
            listener.listen()
        yield folder


def _place(folder: Path, path: str) -> Path:
    """Return where a path of the node is, and make the directories above it."""
    place = folder / path.removeprefix("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
