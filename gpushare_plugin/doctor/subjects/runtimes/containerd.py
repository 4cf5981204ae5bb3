"""containerd: what its configuration gives to containers, and what keeps the configuration from working.

Facts, of containerd/containerd: plugins/cri/runtime/plugin.go (`configMigration`: 2.3 also takes the old section of a
file of version 3); docs/containerd-2.0.md (CDI is on from 2.0 on; before, `enable_cdi` is false: issue 3530 of
kubernetes-sigs/kind); internal/cri/config/config.go, `ValidateRuntimeConfig` (a default handler that is not there keeps
the CRI plugin from loading). `disabled_plugins = ["cri"]` is in the packages of Docker (containerd/containerd issue
4581). A containerd refuses a file of a newer version: `ValidateV2` in services/server/config/config.go from v1.6.32 and
v1.7.17 on (pull request 10165), and `ValidateVersion` in cmd/containerd/server/config/config.go of v2.0.0 and v2.3.0,
with `ConfigVersion` in version/version.go of v2.0.0, v2.3.0 and v2.4.0-beta.0; the version read last counts
(`mergeConfig`). From v2.3.0 on, `LoadConfigWithPlugins` there counts the highest version, and
also refuses an imported file of a higher version than that of the first file which names a version.

From 1.18 on, `nvidia-ctk runtime configure` writes a drop-in file and has containerd import it
(NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk/runtime/configure/configure.go), of which containerd 1.x then takes the
section of the CRI plugin, and none of that section in its own file.
"""

import math
from collections.abc import Iterator, Mapping

from gpushare_plugin.base.text import some_of
from gpushare_plugin.doctor.node.diagnosis import Defect
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.packages import is_at_least, package_version
from gpushare_plugin.doctor.node.toml_files import TomlError
from gpushare_plugin.doctor.subjects.runtimes.containerd_files import NEWEST_SECTION, SECTIONS, ConfigFiles
from gpushare_plugin.doctor.subjects.runtimes.distributions import Distribution, find_distribution
from gpushare_plugin.doctor.subjects.runtimes.runtime import (
    CDI_DIRECTORIES,
    DefaultHandler,
    RuntimeFacts,
    is_nvidias,
    unknown_default,
    unreadable,
)
from gpushare_plugin.gpus.cdi.roots import OPERATORS_TOOLKIT

DROP_INS = "/etc/containerd/conf.d"
"""Where `nvidia-ctk` writes its drop-in file (nvidia-ctk-installer, container/runtime/containerd/containerd.go)."""
_FIRST_DROP_IN = (1, 18)
"""The first version of the toolkit whose `nvidia-ctk` writes a drop-in file."""
_NEWEST_FILES = (((2, 5), None), ((2, 3), 4), ((2,), 3))
"""The newest version of a file that a containerd does not refuse, by the first containerd; None where unknown."""
_FIRST_REFUSING = {"1.6.": (1, 6, 32), "1.7.": (1, 7, 17)}
_NAMES_TO_SHOW = 6


def read_containerd(host: HostRoot) -> RuntimeFacts | None:
    """Return what the configuration of containerd says; None on a node without containerd."""
    where = find_distribution(host)
    if where is None:
        return None
    version = "" if where.name else package_version(host, "containerd.io", "containerd")
    first_major = version.startswith("1.")
    last_decides = version.startswith("2.") and not is_at_least(version, 2, 3)
    reading = ConfigFiles(host, where.file, merges=not first_major, last_decides=last_decides)
    # Without a file of its own, containerd has its defaults. Only 2.0 and newer read files of version 3.
    newer = not first_major and (reading.version > max(SECTIONS) or version.startswith("2."))
    moves = is_at_least(version, 2, 3) and reading.version == max(SECTIONS) + 1
    by_version = True if newer else False if first_major else None
    handlers = reading.handlers | (reading.left_behind if moves else {})
    judging = _Judging(host, where, reading, version, handlers)
    return RuntimeFacts(
        name=f"containerd of {where.name}" if where.name else "containerd",
        files=tuple(reading.files),
        service=where.service,
        handlers=handlers,
        default=reading.default,
        default_setting=judging.default.setting if reading.default_in else "",
        cdi=by_version if reading.cdi is None else reading.cdi,
        cdi_directories=reading.directories or CDI_DIRECTORIES,
        version=version or ("2.x" if newer else ""),
        enables_cdi=judging.enables_cdi(),
        adds_nvidia=judging.adds_nvidia(),
        misplaced=() if moves else tuple(said for name, (_, said) in reading.misplaced.items() if name not in handlers),
        handler_files=reading.handler_in,
        without_systemd=tuple(
            name for name in reading.nvidias if reading.by_systemd.get("runc") and not reading.by_systemd.get(name)
        ),
        edited={where.file: judging.edited(where.file)} if where.templates else {},
        notes=tuple(judging.lost()),
        defects=tuple(judging.defects()),
        unread=tuple(reading.mistakes),
    )


class _Judging:
    """What is said of one configuration."""

    def __init__(
        self, host: HostRoot, where: Distribution, reading: ConfigFiles, version: str, handlers: Mapping[str, str]
    ) -> None:
        self._host = host
        self._where = where
        self._reading = reading
        self._version = version
        self._handlers = handlers
        own = reading.default_in == where.file and self._drop_ins() == ""
        self.default = DefaultHandler(
            reading.default,
            "default_runtime_name",
            reading.default_in,
            self.edited(reading.default_in),
            where.default_setting(host) if own else "",
            self._brought_by().get(reading.default, ""),
        )

    def edited(self, file: str) -> str:
        """Return what people edit for a setting in a file, in words."""
        return self._where.edited(self._host, file, self._drop_ins())

    def _drop_ins(self) -> str:
        """Return the pattern of drop-in files whose settings count more than the same ones of the first file."""
        imports = self._reading.imports.get(self._where.file, ())
        # A containerd 1.x, whose file has version 2, takes the whole section of a drop-in file.
        return next((each for each in imports if "*" in each and self._reading.version > max(SECTIONS)), "")

    def enables_cdi(self) -> str:
        """Return what turns CDI on, in the file whose section or value counts, as an instruction."""
        reading = self._reading
        section = reading.section or reading.cdi_section or SECTIONS.get(reading.version or 2, NEWEST_SECTION)
        file = self.edited(reading.section_in or reading.cdi_in or self._where.file)
        return f"set `enable_cdi = true` in [plugins.'{section}'] of {file}, and run {self._where.service}"

    def adds_nvidia(self) -> str:
        """Return how NVIDIA's runtime gets into the configuration, as an instruction."""
        toolkit = package_version(self._host, "nvidia-container-toolkit-base", "nvidia-container-toolkit")
        file, section = self._replaceable()
        if self._where.name or not file or not is_at_least(toolkit, *_FIRST_DROP_IN):
            return self._where.adds(self._host)
        return (
            f"write a table [plugins.'{section}'.containerd.runtimes.nvidia] like that of runc into {file}, with "
            f'BinaryName = "/usr/bin/nvidia-container-runtime" in its options, and run {self._where.service} '
            f"(`nvidia-ctk runtime configure` of toolkit {toolkit} would write a file of its own instead, for which "
            f"containerd 1.x drops all settings that {file} has in that section); then give the daemon and pods with a "
            "GPU a runtime class with the handler nvidia (runtimeClassName), or set default_runtime_name there"
        )

    def defects(self) -> Iterator[Defect]:
        """Yield what keeps the configuration from working, in the order in which that is best mended."""
        yield from self._unreadable()
        yield from self._disabled()
        yield from self._too_new()
        yield from self._higher_than_first()
        yield from self._not_imported()
        yield from self._hidden()
        # The handler may be in a file that cannot be read.
        if not self._reading.mistakes:
            yield from unknown_default(self._host, self.default, self._handlers, "containerd", self._where.service)

    def lost(self) -> Iterator[str]:
        """Yield, as a sentence, which settings of a file have no effect, since a later file has their section."""
        reading, last = self._reading, self._reading.section_in
        into = f"write them into that section of {last}, too"
        if any(program.startswith(OPERATORS_TOOLKIT) for program in self._handlers.values()):
            into = (
                f"copy them and that section of {last}, which NVIDIA's operator writes itself, into a new file that is "
                f"read after {last}"
            )
        for file, names in reading.lost.items():
            yield (
                f"Of {file}, no setting of [plugins.'{reading.section}'] has an effect, since containerd 1.x takes "
                f"this section whole from {last}, which lacks {some_of(names, _NAMES_TO_SHOW)}: to have these "
                f"settings, {into}, and run {self._where.service}"
            )

    def _unreadable(self) -> Iterator[Defect]:
        for file, error in self._reading.mistakes.items():
            defect = unreadable(file, error, "containerd", self._where.service)
            if template := self._of_template(file, error):
                defect = defect._replace(remedy=f"{template}, and run {self._where.service}")
            yield defect

    def _of_template(self, file: str, error: Exception) -> str:
        """Return what corrects the template of which a distribution made a file; empty for a file of people."""
        where = self._where
        if file != where.file or not where.templates:
            return ""
        template = where.template(self._host)
        if template is None:
            return f"remove {file}, which each start of {where.name} makes anew"
        made = f"{template} (of which each start of {where.name} makes {file})"
        if not isinstance(error, TomlError) or not error.twice:
            return f"correct {made}"
        if not where.extends(self._host, template):
            return error.keeps_once(made)
        each = f"each of {' and '.join(error.twice)}" if len(error.twice) > 1 else error.twice[0]
        return (
            f'remove {each}, which {where.name} writes itself for `{{{{ template "base" . }}}}`, from {made}, with the '
            "settings directly below"
        )

    def _disabled(self) -> Iterator[Defect]:
        for file, disabled in self._reading.disabled.items():
            yield Defect(
                f"{file} turns the CRI plugin off (disabled_plugins has {disabled}), so the kubelet cannot start pods "
                "with this containerd; `nvidia-ctk runtime configure` alone does not mend that",
                f"remove {disabled} from disabled_plugins in {self.edited(file)} and run {self._where.service}",
            )

    def _too_new(self) -> Iterator[Defect]:
        """Yield the defect that the configuration has a version which this containerd refuses."""
        newest, given = _newest_file(self._version), self._reading.given
        versions = list(given.values())
        counts = max(versions, default=0) if is_at_least(self._version, 2, 3) else (versions or [0])[-1]
        if newest is None or counts <= newest:
            return
        section = SECTIONS.get(newest, NEWEST_SECTION)
        newer = ", ".join(f"{file} (version {version})" for file, version in given.items() if version > newest)
        yield Defect(
            f"containerd {self._version} does not start with {newer}: expected version {newest} or an older one",
            f"write {newer} with version = {newest} and the sections of that version, such as "
            f"[plugins.'{section}'], and run {self._where.service}",
        )

    def _higher_than_first(self) -> Iterator[Defect]:
        """Yield the defect that an imported file has a higher version than the file which imports it."""
        given = self._reading.given
        if not is_at_least(self._version, 2, 3) or not given:
            return
        first, version = next(iter(given.items()))
        section = SECTIONS.get(version, NEWEST_SECTION)
        for file, higher in given.items():
            if higher > version:
                yield Defect(
                    f"containerd {self._version} does not start with {file} (version {higher}), because an imported "
                    f"file may not have a higher version than {first} (version {version})",
                    f"write {file} with version = {version} and the sections of that version, such as "
                    f"[plugins.'{section}'], and run {self._where.service}",
                )

    def _replaceable(self) -> tuple[str, str]:
        """Return the file and the section that containerd 1.x drops for those of an import; empty without any.

        A containerd of unknown version may be 1.x where its files are of version 1 or 2.
        """
        reading = self._reading
        if self._version or reading.version > max(SECTIONS):
            return reading.section_in, reading.section
        return next(reversed(reading.sections.items()), ("", ""))

    @property
    def _highest(self) -> float:
        """The highest version that an imported file may have; infinite where that is not known."""
        newest = _newest_file(self._version) or math.inf
        first = next(iter(self._reading.given.values()), math.inf)
        return min(newest, first) if is_at_least(self._version, 2, 3) else newest

    def _left_out(self) -> dict[str, ConfigFiles]:
        """Return the drop-in files of the usual directory that are not read."""
        left = (each for each in self._host.matching(f"{DROP_INS}/*.toml") if each not in self._reading.files)
        return {each: ConfigFiles(self._host, each, merges=self._reading.merges) for each in left}

    def _not_imported(self) -> Iterator[Defect]:
        """Yield the defect that drop-in files of the usual directory are not read, and no file has the handler."""
        where, reading = self._where, self._reading
        readable = where.file in reading.files and where.file not in reading.mistakes
        if where.name or not readable or reading.nvidias:
            return
        left = self._left_out()
        if any(each.nvidias or each.left_behind for each in left.values()):
            yield Defect(
                f"{' and '.join(left)} {'have' if len(left) > 1 else 'has'} no effect, because {where.file} does not "
                f"import {'these files' if len(left) > 1 else 'this file'}",
                f"{self._imports(left)}, and run {where.service}",
            )

    def _imports(self, left: Mapping[str, ConfigFiles]) -> str:
        """Return what has containerd read drop-in files, without the loss of any setting, as an instruction."""
        where, reading = self._where, self._reading
        file, section = self._replaceable()
        if file:
            return (
                f"write the handlers of {', '.join(left)} into [plugins.'{section}'] of {file} instead of an import, "
                f"with which containerd 1.x would drop all settings that {file} has in that section"
            )
        add = f'add `imports = ["{DROP_INS}/*.toml"]` at the top of {where.file}, before the first table'
        if where.file in reading.imports:
            add = f'add "{DROP_INS}/*.toml" to the list `imports` that {where.file} has'
        if higher := [file for file, each in left.items() if each.version > self._highest]:
            section = SECTIONS.get(int(self._highest), NEWEST_SECTION)
            return (
                f"write {' and '.join(higher)} with version = {self._highest} and the sections of that version, such "
                f"as [plugins.'{section}'], since containerd {self._version} does not start with a newer one here; "
                f"then {add}"
            )
        several = [file for file, each in left.items() if each.section_in]
        if len(several) > 1:
            section = left[several[0]].section
            return (
                f"bring all settings that {' and '.join(several)} have in [plugins.'{section}'] into one of these "
                f"files, since containerd 1.x takes this section from the file read last only; then {add}"
            )
        return add

    def _hidden(self) -> Iterator[Defect]:
        """Yield the defect that a file with NVIDIA's handler has no effect, and no other file has the handler."""
        reading = self._reading
        if reading.nvidias:
            return
        for file in reading.hidden:
            yield Defect(
                f"NVIDIA's handler in {file} has no effect: containerd 1.x takes [plugins.'{reading.section}'] whole "
                f"from the file read last that has the section, {reading.section_in}",
                f"move all settings of that section into {reading.section_in}, those of {file} included, and run "
                f"{self._where.service}",
            )

    def _brought_by(self) -> dict[str, str]:
        """Return the file with a handler of NVIDIA's that has no effect yet, by the name of the handler."""
        if any(map(is_nvidias, self._handlers.values())):
            return {}
        left = {} if self._where.name else self._left_out()
        found = {name: file for file, each in left.items() for name in each.nvidias}
        found |= {name: file for file, names in self._reading.hidden.items() for name in names}
        return found | {name: file for name, (file, _) in self._reading.misplaced.items()}


def _newest_file(version: str) -> int | None:
    """Return the newest version of a file that a containerd does not refuse; None if it is not known."""
    if version.startswith("1."):
        first = _FIRST_REFUSING.get(version[:4], (1, 7, 17))
        return 2 if is_at_least(version, *first) else None
    return next((newest for first, newest in _NEWEST_FILES if is_at_least(version, *first)), None)
