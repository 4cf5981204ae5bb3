"""The files of one configuration of containerd, of versions 1 to 4: what they say together, and which of it counts.

Facts, of containerd/containerd: docs/cri/config.md (`enable_cdi`, `cdi_spec_dirs`, `default_runtime_name`; version 3
moved them from `io.containerd.grpc.v1.cri` to `io.containerd.cri.v1.runtime`); RELEASES.md, "Daemon Configuration" (a
file without `version` has version 1; version 3 needs 2.0 and version 4 needs 2.3); docs/man/containerd-config.toml.5.md
(`imports`); `LoadConfig` in cmd/containerd/server/config/config.go (the order of the files).
"""

from collections.abc import Iterator, Mapping

from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.node.toml_files import TomlError, read_toml
from gpushare_plugin.doctor.subjects.runtimes.runtime import is_nvidias, table, text, texts

SECTIONS = {1: "cri", 2: "io.containerd.grpc.v1.cri"}
"""The section of the CRI plugin by the version of the file; newer ones have `NEWEST_SECTION`."""
NEWEST_SECTION = "io.containerd.cri.v1.runtime"
"""The section of the CRI plugin in files of version 3 and newer."""
_MOST_FILES = 64
_CRI = frozenset({"cri", "io.containerd.grpc.v1.cri", NEWEST_SECTION})


class ConfigFiles:
    """The files of one configuration, read in the order of containerd: a file, and then its imports.

    containerd 1.x takes the section of the CRI plugin whole from the file read last that has the section: `mergeConfig`
    in services/server/config/config.go of v1.7.28 replaces each entry of `Plugins`. 2.0 and newer merge the settings of
    all files (`mergeConfig` in cmd/containerd/server/config/config.go of v2.0.0). Up to 2.2, the version read last
    decides for all files whether the old section is moved to the new one (`LoadConfig` there, and `New` in
    cmd/containerd/server/server.go of v2.1.4); 2.3 and newer move each file by its own version.
    """

    def __init__(self, host: HostRoot, first: str, *, merges: bool, last_decides: bool = False) -> None:
        """Read `first` and what it imports.

        `merges` is whether containerd merges the settings of all files, and `last_decides` whether the version of the
        file read last counts for all files.
        """
        self._host = host
        self.merges = merges
        self.section_in, self.section = "", ""
        """The file and the name of the section that counts whole; empty where the files are merged."""
        self.sections: dict[str, str] = {}
        """The section of the CRI plugin in a file, by the file, of those that have one which counts."""
        self._settings: dict[str, list[str]] = {}
        """The settings in the section of a file, by the file, where one section counts whole."""
        self.hidden: dict[str, tuple[str, ...]] = {}
        """The handlers of NVIDIA's in sections that do not count, since a later file has the section, by the file."""
        self.files: list[str] = []
        self.handlers: dict[str, str] = {"runc": ""}
        self.handler_in: dict[str, str] = {}
        self.default, self.default_in = "runc", ""
        self.by_systemd: dict[str, bool] = {}
        """Whether a handler has systemd make the control groups, by its name; only of those that say so."""
        self.cdi: bool | None = None
        self.cdi_in, self.cdi_section = "", ""
        """The file and the name of the section with the value that counts; empty without a value."""
        self.directories: tuple[str, ...] = ()
        self.version = 0
        self.given: dict[str, int] = {}
        """The version that a file names, by the file."""
        self.left_behind: dict[str, str] = {}
        """The handlers of NVIDIA's that have no effect in the section that they are in, with their programs."""
        self.misplaced: dict[str, tuple[str, str]] = {}
        """The file of a handler of NVIDIA's without effect, and where the handler is, in words, by its name."""
        self.imports: dict[str, tuple[str, ...]] = {}
        """The list `imports` of the files that have this key, also an empty one, as `containerd config default` has."""
        self.disabled: dict[str, str] = {}
        """The names of the CRI plugin in `disabled_plugins`, by the file."""
        self.mistakes: dict[str, TomlError | UnreadableError] = {}
        """Why a file cannot be read, by the file."""
        contents = list(self._read(first))
        last = list(self.given.values())[-1] if last_decides and self.given else None
        for file, content in contents:
            self._take(file, content, last)

    def _read(self, first: str) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yield each file that can be read, with its content."""
        pending = [first]
        while pending and len(self.files) < _MOST_FILES:
            file = pending.pop(0)
            if file in self.files or not self._host.exists(file):
                continue
            self.files.append(file)
            try:
                content = read_toml(self._host, file)
            except (UnreadableError, TomlError) as error:
                self.mistakes[file] = error
                continue
            if "imports" in content:
                self.imports[file] = texts(content["imports"])
            if isinstance(given := content.get("version"), int) and given:
                self.given[file] = given
            yield file, content
            pending += self._imported(file)

    def _imported(self, file: str) -> Iterator[str]:
        """Yield the files that a file imports, which may have wildcards, or be relative to the file's directory."""
        for each in self.imports.get(file, ()):
            path = each if each.startswith("/") else f"{file.rpartition('/')[0]}/{each}"
            yield from self._host.matching(path)

    def _take(self, file: str, content: Mapping[str, object], last: int | None) -> None:
        """Take what a file says, by the version `last` if that decides, else by its own version."""
        version = last or self.given.get(file, 1)
        self.version = max(self.version, version)
        if disabled := _CRI.intersection(texts(content.get("disabled_plugins"))):
            self.disabled[file] = ", ".join(sorted(disabled))
        for name in self._sections(version):
            self._take_section(file, name, table(content, "plugins", name))
        for name in {SECTIONS[2], NEWEST_SECTION}.difference(self._sections(version)):
            self._leave(file, version, name, table(content, "plugins", name))

    def _sections(self, version: int) -> tuple[str, ...]:
        """Return the sections that count in a file of a version; containerd 1.x does not know the newest section."""
        if not self.merges:
            return SECTIONS[2], SECTIONS[1]
        return (SECTIONS[2], NEWEST_SECTION, SECTIONS[1]) if version in SECTIONS else (NEWEST_SECTION,)

    def _leave(self, file: str, version: int, name: str, section: Mapping[str, object]) -> None:
        """Note the handlers of NVIDIA's in a section that does not count."""
        left = {handler: program for handler, program in _handlers(section) if is_nvidias(program)}
        self.left_behind |= left
        self.handler_in |= dict.fromkeys(left.keys() - self.handlers.keys(), file)
        for handler in left:
            has = "has" if self.given.get(file, 1) == version else f"{list(self.given)[-1]} makes one of"
            where = f"{handler} in [plugins.'{name}'] of {file}, which {has} version {version}"
            self.misplaced[handler] = file, f"{where}: expected in [plugins.'{self._sections(version)[0]}']"

    def _take_section(self, file: str, name: str, section: Mapping[str, object]) -> None:
        if section:
            self.sections[file] = name
        if section and not self.merges:
            if self.section_in != file:
                self._hide()
            self.section_in, self.section = file, name
            self._settings.setdefault(file, []).extend(_settings(section))
        handlers = dict(_handlers(section))
        self.handlers |= handlers
        self.handler_in |= dict.fromkeys(handlers, file)
        self.by_systemd |= dict(_makers_of_cgroups(section))
        if default := text(table(section, "containerd").get("default_runtime_name")):
            self.default, self.default_in = default, file
        if isinstance(given := section.get("enable_cdi"), bool):
            self.cdi, self.cdi_in, self.cdi_section = given, file, name
        self.directories = texts(section.get("cdi_spec_dirs")) or self.directories

    def _hide(self) -> None:
        """Forget the section of an earlier file, of which nothing counts."""
        if self.nvidias:
            self.hidden[self.section_in] = self.nvidias
        self.handlers, self.handler_in, self.default, self.default_in = {"runc": ""}, {}, "runc", ""
        self.cdi, self.cdi_in, self.cdi_section, self.directories = None, "", "", ()
        self.by_systemd = {}

    @property
    def nvidias(self) -> tuple[str, ...]:
        """The handlers that run NVIDIA's runtime."""
        return tuple(name for name, program in self.handlers.items() if is_nvidias(program))

    @property
    def lost(self) -> dict[str, tuple[str, ...]]:
        """The settings without effect, since a later file has their section, by the file; their names only."""
        counting = set(self._settings.get(self.section_in, ()))
        names = {
            file: tuple(dict.fromkeys(_short(name) for name in settings if name not in counting))
            for file, settings in self._settings.items()
        }
        return {file: lost for file, lost in names.items() if lost}


def _settings(section: Mapping[str, object], above: str = "") -> Iterator[str]:
    """Yield the names of all settings in a section, with those of their tables before."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def _short(name: str) -> str:
    """Return the name of a setting; of the registries and the like only the table, since their names are private."""
    return name if name.startswith("containerd.") else name.partition(".")[0]


def _handlers(section: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the handlers of a CRI section with their programs."""
    for name, handler in table(section, "containerd", "runtimes").items():
        options = table(handler, "options")
        # Version 1 wrote Runtime, for containers of the first shim.
        yield name, text(options.get("BinaryName")) or text(options.get("Runtime"))


def _makers_of_cgroups(section: Mapping[str, object]) -> Iterator[tuple[str, bool]]:
    """Yield the handlers of a CRI section that say whether systemd makes the control groups, with what they say."""
    for name, handler in table(section, "containerd", "runtimes").items():
        if isinstance(given := table(handler, "options").get("SystemdCgroup"), bool):
            yield name, given
