"""Reads the CDI specifications of the host, as the container runtime will read them.

Sources: cncf-tags/container-device-interface, SPEC.md; `scanSpecDirs` in pkg/cdi/spec-dirs.go (which files); `refresh`
in pkg/cdi/cache.go (which file counts where two describe a device); pkg/parser (names).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import in_words, some_of, visible
from gpushare_plugin.core.cdi import CdiDevices
from gpushare_plugin.core.driver_limits import LIMITS_HOOK

LARGEST_FILE = 4 << 20
"""The size limit of a specification in bytes, some ten times the specification of 16 GPUs with 112 MIG instances."""

MOST_FILES = 100
"""The most specifications that are read in a directory."""

_SUFFIXES = {".json", ".yaml"}
_KIND = re.compile(r"[A-Za-z]([-\w.]*[A-Za-z0-9])?/[A-Za-z]([-\w.]*[A-Za-z0-9])?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9]([-\w.:]*[A-Za-z0-9])?", re.ASCII)
_CUDA_LIBRARY = re.compile(r"libcuda\.so\.([0-9]+\.[0-9.]+)$")
_NAMES_TO_SHOW = 3
_MOST_DEPTH = 20
"""A specification has 6 levels."""


class _Spec(Struct, frozen=True):
    """The part of a specification that matters here."""

    file: Path
    """The path of the file."""
    devices: tuple[str, ...]
    """The qualified names of the devices."""
    driver_versions: frozenset[str]
    """The versions of the driver whose CUDA library containers get."""
    limiting: frozenset[str] = frozenset()
    """The qualified names of the devices with a hook that sets driver limits."""


class SpecReader:
    """Reads the specifications in directories; a file is read again only after a change."""

    def __init__(self, directories: Sequence[Path], followed: Callable[[Path], Path] = Path) -> None:
        """Read in `directories`, of which a later one counts more, as for the container runtime.

        `followed` returns where a file is that can be a link, for files of another root than that of this process.
        """
        self._followed = followed
        self.directories = tuple(directories)
        self._before: dict[Path, tuple[tuple[int, int, int], _Spec | str]] = {}
        self._known = self._before

    def devices(self, driver_version: str) -> CdiDevices:
        """Return the devices that containers can use with this version of the driver; any, with an empty version."""
        # Files that are gone are forgotten: a DRA driver writes one for each claim.
        self._before, self._known = self._known, {}
        files: dict[str, str] = {}
        limiting: dict[str, frozenset[str]] = {}
        unusable: list[str] = []
        for directory in self.directories:
            found: dict[str, str] = {}
            lost: set[str] = set()
            for spec in self._specs(directory, unusable):
                if driver_version and (outdated := spec.driver_versions - {driver_version}):
                    unusable.append(
                        f"the CDI specification {spec.file} is outdated: it gives containers the CUDA library of the "
                        f"driver {', '.join(sorted(outdated))}, and the driver is {driver_version}; generate it again"
                    )
                    lost.update(spec.devices)
                if twice := [name for name in spec.devices if name in found]:
                    unusable.append(
                        f"{found[twice[0]]} and {spec.file} both describe the CDI devices "
                        f"{some_of(twice, _NAMES_TO_SHOW)}, which the container runtime then refuses; remove one of "
                        "the files"
                    )
                    lost.update(twice)
                found |= dict.fromkeys(spec.devices, str(spec.file))
                limiting[str(spec.file)] = spec.limiting
            # A device of a later directory counts, also where containers cannot use the device.
            files = {name: file for name, file in (files | found).items() if name not in lost}
        limited = frozenset(name for name, file in files.items() if name in limiting[file])
        return CdiDevices(tuple(map(str, self.directories)), files, tuple(unusable), limiting=limited)

    def _specs(self, directory: Path, unusable: list[str]) -> Iterator[_Spec]:
        """Yield the specifications in a directory by name, and add the reasons why others are left out."""
        try:
            paths = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)
        except FileNotFoundError:
            return
        except OSError as error:
            unusable.append(f"CDI specifications cannot be read, and count as missing: {in_words(error)}")
            return
        if len(paths) > MOST_FILES:
            unusable.append(
                f"{directory} has {len(paths)} CDI specifications, of which the first {MOST_FILES} by name are read; "
                "remove those that nothing uses"
            )
        for path in paths[:MOST_FILES]:
            match self._spec(path):
                case _Spec() as spec:
                    yield spec
                case str() as reason:
                    unusable.append(f"the CDI specification {visible(str(path))} is left out: {reason}")
                case None:
                    pass

    def _spec(self, path: Path) -> _Spec | str | None:
        """Return a specification or why it is left out; None for a directory, and for a file that is gone."""
        try:
            there = self._followed(path)
            state = there.stat()
            if there.is_dir():
                return None
            signature = state.st_ino, state.st_mtime_ns, state.st_size
            known = self._before.get(path)
            self._known[path] = known if known and known[0] == signature else (signature, _read(path, there))
        except FileNotFoundError:
            return None
        except OSError as error:
            return in_words(error)
        return self._known[path][1]


def _read(path: Path, there: Path) -> _Spec | str:
    """Return the specification `path`, whose content is in the file `there`, or why it is left out."""
    content = read_regular(there, LARGEST_FILE + 1, follow_links=True)
    if len(content) > LARGEST_FILE:
        return f"it has more than {LARGEST_FILE} bytes, expected at most so many"
    try:
        document = parsed(content, path.suffix)
    except (ValueError, RecursionError, yaml.YAMLError):
        return f"it is not valid {path.suffix[1:].upper()}"
    kind, devices = _in(document, "kind"), _in(document, "devices")
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        return f"its kind is {kind!r:.60}, expected <vendor>/<class>"
    names = [_in(device, "name") for device in devices] if isinstance(devices, list) else []
    if not names or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        return "it lists no devices, or devices without a proper name; expected one device or more"
    qualified = tuple(f"{kind}={name}" for name in names)
    of_all, *of_each = (_in(each, "containerEdits") for each in (document, *devices))
    limiting = frozenset(name for name, own in zip(qualified, of_each, strict=True) if _limits((of_all, own)))
    return _Spec(path, qualified, frozenset(_driver_versions((of_all, *of_each))), limiting)


def parsed(content: bytes, suffix: str) -> Any:
    """Return the document in a specification; raises ValueError, RecursionError or YAMLError for anything else."""
    if suffix == ".json":
        return json.loads(content)
    # A specification of many GPUs has 10,000 lines, which take PyYAML's own parser seconds.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    _refuse_depth(yaml.parse(content, loader))
    return yaml.load(content, loader)  # noqa: S506 - both loaders are safe


def _refuse_depth(events: Iterable[Any]) -> None:
    """Raise ValueError for a document nested too deeply: libyaml's composer would end the process."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            raise ValueError(depth)


def _driver_versions(edits: Iterable[Any]) -> Iterator[str]:
    for each in edits:
        mounts = _in(each, "mounts")
        for mount in mounts if isinstance(mounts, list) else ():
            if found := _CUDA_LIBRARY.search(str(_in(mount, "hostPath"))):
                yield found[1]


def _limits(edits: Iterable[Any]) -> bool:
    """Return whether one of the hooks sets driver limits."""
    for each in edits:
        hooks = _in(each, "hooks")
        for hook in hooks if isinstance(hooks, list) else ():
            arguments = _in(hook, "args")
            if isinstance(arguments, list) and LIMITS_HOOK in arguments:
                return True
    return False


def _in(document: Any, key: str) -> Any:
    return document.get(key) if isinstance(document, dict) else None
