"""containerd: its configuration, of versions 1 to 4, with the files that it imports.

Facts, of containerd/containerd: docs/cri/config.md (`enable_cdi`, `cdi_spec_dirs`, `default_runtime_name`; version 3
moved them from `io.containerd.grpc.v1.cri` to `io.containerd.cri.v1.runtime`); RELEASES.md, "Daemon Configuration" (a
file without `version` has version 1; version 3 needs 2.0 and version 4 needs 2.3); docs/man/containerd-config.toml.5.md
(`imports`); plugins/cri/runtime/plugin.go (`configMigration`: 2.3 also takes the old section of a file of version 3);
docs/containerd-2.0.md (CDI is on from 2.0 on; before, `enable_cdi` is false: issue 3530 of
kubernetes-sigs/kind); internal/cri/config/config.go, `ValidateRuntimeConfig` (a default handler that is not there keeps
the CRI plugin from loading). `disabled_plugins = ["cri"]` is in the packages of Docker (containerd/containerd issue
4581). A containerd refuses a file of a newer version: `ValidateV2` in services/server/config/config.go from v1.6.32 and
v1.7.17 on (pull request 10165), and `ValidateVersion` in cmd/containerd/server/config/config.go of v2.0.0 and v2.3.0,
with `ConfigVersion` in version/version.go; the version read last counts (`mergeConfig`).

K3s and RKE2 make a configuration of their own and find NVIDIA's runtime when they start (k3s-io/k3s,
pkg/agent/containerd/nvidia.go, docs.k3s.io, "NVIDIA Container Runtime Support"); k0s reads /etc/k0s
(docs.k0sproject.io, "Runtime"), MicroK8s /var/snap/microk8s/current/args/containerd.toml (its add-on nvidia).
"""

import tomllib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpushare_plugin.doctor.node.diagnosis import Defect
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.node.packages import is_at_least, package_version
from gpushare_plugin.doctor.subjects.runtimes.runtime import (
    CDI_DIRECTORIES,
    FOR_PODS,
    DefaultHandler,
    RuntimeFacts,
    is_nvidias,
    table,
    text,
    texts,
    unknown_default,
)

DROP_INS = "/etc/containerd/conf.d"
"""Where `nvidia-ctk` writes its drop-in file (nvidia-ctk-installer, container/runtime/containerd/containerd.go)."""
_MOST_FILES = 64
_SECTIONS = {1: "cri", 2: "io.containerd.grpc.v1.cri"}
_NEWEST_SECTION = "io.containerd.cri.v1.runtime"
_CRI = frozenset({"cri", "io.containerd.grpc.v1.cri", _NEWEST_SECTION})


class Distribution(NamedTuple):
    """Where a Kubernetes distribution has the configuration of its containerd."""

    name: str
    """The name, empty for a containerd of the node."""
    file: str
    """The configuration, a path of the node."""
    service: str
    """What restarts containerd there."""
    adds_nvidia: str
    """How NVIDIA's runtime gets into the configuration, as an instruction."""
    edited: str = ""
    """The file that people edit; empty for `file`."""


_CONFIGURES = f"run `nvidia-ctk runtime configure --runtime=containerd` and `systemctl restart containerd`; {FOR_PODS}"
_FINDS = "install NVIDIA's container toolkit and restart {}, which finds the runtime in /usr/bin when it starts"
_TEMPLATE = (
    "the template config-v3.toml.tmpl (config.toml.tmpl for a file of version 2), which begins with "
    '`{{{{ template "base" . }}}}`, in /var/lib/rancher/{}/agent/etc/containerd'
)
_DISTRIBUTIONS = (
    Distribution(
        "K3s",
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        "systemctl restart k3s, or k3s-agent",
        _FINDS.format("K3s"),
        _TEMPLATE.format("k3s"),
    ),
    Distribution(
        "RKE2",
        "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        "systemctl restart rke2-server, or rke2-agent",
        _FINDS.format("RKE2"),
        _TEMPLATE.format("rke2"),
    ),
    Distribution(
        "k0s",
        "/etc/k0s/containerd.toml",
        "systemctl restart k0scontroller, or k0sworker",
        "write the handler into a file of /etc/k0s/containerd.d and restart k0s",
    ),
    Distribution(
        "MicroK8s",
        "/var/snap/microk8s/current/args/containerd.toml",
        "snap restart microk8s.daemon-containerd",
        "run `microk8s enable nvidia`",
    ),
    Distribution("", "/etc/containerd/config.toml", "systemctl restart containerd", _CONFIGURES),
)


def find_distribution(host: HostRoot) -> Distribution | None:
    """Return whose containerd the node has, None without a configuration or a socket of containerd."""
    for each in _DISTRIBUTIONS:
        if host.exists(each.file):
            return each
    return _DISTRIBUTIONS[-1] if host.exists("/run/containerd/containerd.sock") else None


class _ConfigFiles:
    """The files of one configuration, read in the order of containerd: a file, and then its imports.

    containerd 1.x takes the section of the CRI plugin whole from the file read last that has the section: `mergeConfig`
    in services/server/config/config.go of v1.7.28 replaces each entry of `Plugins`. 2.0 and newer merge the settings of
    all files (`mergeConfig` in cmd/containerd/server/config/config.go of v2.0.0).
    """

    def __init__(self, host: HostRoot, *, merges: bool) -> None:
        self._host = host
        self._merges = merges
        self.section_in, self.section = "", ""
        """The file and the name of the section that counts whole; empty where the files are merged."""
        self.hidden: dict[str, str] = {}
        self.files: list[str] = []
        self.handlers: dict[str, str] = {"runc": ""}
        self.handler_in: dict[str, str] = {}
        self.default, self.default_in = "runc", ""
        self.cdi: bool | None = None
        self.cdi_in, self.cdi_section = "", ""
        """The file and the name of the section with the value that counts; empty without a value."""
        self.directories: tuple[str, ...] = ()
        self.version = 0
        self.given: dict[str, int] = {}
        """The version that a file names, by the file."""
        self.left_behind: dict[str, str] = {}
        self.misplaced: dict[str, str] = {}
        """Where a handler of NVIDIA's has no effect, in words, by the name of the handler."""
        self.importing: list[str] = []
        """The files that have the key `imports`, also with an empty list, as `containerd config default` writes it."""
        self.defects: list[Defect] = []
        self.unread: list[str] = []

    def read(self, first: str, restart: str) -> None:
        pending = [first]
        while pending and len(self.files) < _MOST_FILES:
            file = pending.pop(0)
            if file in self.files or not self._host.exists(file):
                continue
            self.files.append(file)
            try:
                content = tomllib.loads(self._host.text(file) or "")
            except (UnreadableError, ValueError, RecursionError) as error:
                mend = f"correct {file}, which containerd cannot read either, and run {restart}"
                self.defects.append(Defect(f"{file}: {error}", mend))
                self.unread.append(file)
                continue
            self._take(file, content)
            if "imports" in content:
                self.importing.append(file)
            pending += _imports(self._host, file, content)

    def _take(self, file: str, content: Mapping[str, object]) -> None:
        given = content.get("version")
        version = given if isinstance(given, int) else 1
        self.version = max(self.version, version)
        if given:
            self.given[file] = version
        if disabled := _CRI.intersection(texts(content.get("disabled_plugins"))):
            self.defects.append(
                Defect(
                    f"{file} turns the CRI plugin off (disabled_plugins has {', '.join(sorted(disabled))}), so the "
                    "kubelet cannot start pods with this containerd; `nvidia-ctk runtime configure` alone does not "
                    "mend that",
                    f"remove {', '.join(sorted(disabled))} from disabled_plugins in {file} and restart containerd",
                )
            )
        for name in self._sections(version):
            self._take_section(file, name, table(content, "plugins", name))
        for name in {_SECTIONS[2], _NEWEST_SECTION}.difference(self._sections(version)):
            self._leave(file, version, name, table(content, "plugins", name))

    def _sections(self, version: int) -> tuple[str, ...]:
        """Return the sections that count in a file of a version; containerd 1.x does not know the newest section."""
        if not self._merges:
            return _SECTIONS[2], _SECTIONS[1]
        return (_SECTIONS[2], _NEWEST_SECTION, _SECTIONS[1]) if version in _SECTIONS else (_NEWEST_SECTION,)

    def _leave(self, file: str, version: int, name: str, section: Mapping[str, object]) -> None:
        """Note the handlers of NVIDIA's in a section that does not count."""
        left = {handler: program for handler, program in _handlers(section) if is_nvidias(program)}
        self.left_behind |= left
        self.handler_in |= dict.fromkeys(left.keys() - self.handlers.keys(), file)
        for handler in left:
            self.misplaced[handler] = (
                f"{handler} in [plugins.'{name}'] of {file}, which has version {version}: expected in "
                f"[plugins.'{self._sections(version)[0]}']"
            )

    def _take_section(self, file: str, name: str, section: Mapping[str, object]) -> None:
        if section and not self._merges and self.section_in != file:
            self._hide()
            self.section_in, self.section = file, name
        handlers = dict(_handlers(section))
        self.handlers |= handlers
        self.handler_in |= dict.fromkeys(handlers, file)
        if default := text(table(section, "containerd").get("default_runtime_name")):
            self.default, self.default_in = default, file
        if isinstance(given := section.get("enable_cdi"), bool):
            self.cdi, self.cdi_in, self.cdi_section = given, file, name
        self.directories = texts(section.get("cdi_spec_dirs")) or self.directories

    def _hide(self) -> None:
        """Forget the section of an earlier file, of which nothing counts."""
        if any(map(is_nvidias, self.handlers.values())):
            self.hidden[self.section_in] = self.section
        self.handlers, self.handler_in, self.default, self.default_in = {"runc": ""}, {}, "runc", ""
        self.cdi, self.cdi_in, self.cdi_section, self.directories = None, "", "", ()


def read_containerd(host: HostRoot) -> RuntimeFacts | None:
    """Return what the configuration of containerd says; None on a node without containerd."""
    where = find_distribution(host)
    if where is None:
        return None
    version = "" if where.name else package_version(host, "containerd.io", "containerd")
    first_major = version.startswith("1.")
    reading = _ConfigFiles(host, merges=not first_major)
    reading.read(where.file, where.service)
    # Without a file of its own, containerd has its defaults. Only 2.0 and newer read files of version 3.
    newer = not first_major and (reading.version > max(_SECTIONS) or version.startswith("2."))
    moves = _moves_handlers(version) and reading.version == max(_SECTIONS) + 1
    by_version = True if newer else False if first_major else None
    handlers = reading.handlers | (reading.left_behind if moves else {})
    default = DefaultHandler(reading.default, "default_runtime_name", reading.default_in, where.edited)
    return RuntimeFacts(
        name=f"containerd of {where.name}" if where.name else "containerd",
        files=tuple(reading.files),
        service=where.service,
        handlers=handlers,
        default=reading.default,
        cdi=by_version if reading.cdi is None else reading.cdi,
        cdi_directories=reading.directories or CDI_DIRECTORIES,
        version=version or ("2.x" if newer else ""),
        enables_cdi=_enables_cdi(where, reading),
        adds_nvidia=where.adds_nvidia,
        misplaced=() if moves else tuple(said for name, said in reading.misplaced.items() if name not in handlers),
        handler_files=reading.handler_in,
        generated=bool(where.edited),
        defects=(
            *reading.defects,
            *_too_new(where, reading, version),
            *_not_imported(host, where, reading),
            *_hidden(where, reading),
            *unknown_default(default, handlers, "containerd", where.service),
        ),
        unread=tuple(reading.unread),
    )


def _enables_cdi(where: Distribution, reading: _ConfigFiles) -> str:
    """Return what turns CDI on, in the file whose section or value counts, as an instruction."""
    section = reading.section or reading.cdi_section or _SECTIONS.get(reading.version or 2, _NEWEST_SECTION)
    decides = reading.section_in or reading.cdi_in
    imported = decides if decides != where.file else ""
    file = imported or where.edited or where.file
    return f"set `enable_cdi = true` in [plugins.'{section}'] of {file}, and run {where.service}"


def _moves_handlers(version: str) -> bool:
    """Return whether a containerd moves handlers of the old section in a file of version 3, as 2.3 and newer do."""
    return is_at_least(version, 2, 3)


def _too_new(where: Distribution, reading: _ConfigFiles, version: str) -> Iterator[Defect]:
    """Yield the defect that the configuration has a version which a containerd of `version` refuses."""
    newest = _newest_file(version)
    if newest is None or not reading.given or list(reading.given.values())[-1] <= newest:
        return
    section = _SECTIONS.get(newest, _NEWEST_SECTION)
    newer = [f"{file} (version {given})" for file, given in reading.given.items() if given > newest]
    yield Defect(
        f"containerd {version} does not start with {', '.join(newer)}: expected version {newest} or an older one",
        f"write {', '.join(newer)} with version = {newest} and the sections of that version, such as "
        f"[plugins.'{section}'], or install containerd {'2.3' if newest > max(_SECTIONS) else '2.0'} or newer; then "
        f"run {where.service}",
    )


def _newest_file(version: str) -> int | None:
    """Return the newest version of a file that a containerd does not refuse; None if it is not known."""
    if version.startswith("2.") and not is_at_least(version, 2, 3):
        return 3
    refuses = is_at_least(version, 1, 6, 32) if version.startswith("1.6.") else is_at_least(version, 1, 7, 17)
    return 2 if version.startswith("1.") and refuses else None


def _not_imported(host: HostRoot, where: Distribution, reading: _ConfigFiles) -> Iterator[Defect]:
    """Yield the defect that drop-in files of the usual directory are not read, and no other file has the handler."""
    readable = where.file in reading.files and where.file not in reading.unread
    if where.name or not readable or any(map(is_nvidias, reading.handlers.values())):
        return
    left = [each for each in host.matching(f"{DROP_INS}/*.toml") if each not in reading.files]
    if left:
        add = f'add `imports = ["{DROP_INS}/*.toml"]` at the top of {where.file}, before the first table'
        if where.file in reading.importing:
            add = f'add "{DROP_INS}/*.toml" to the list `imports` that {where.file} has'
        if reading.section_in:
            add = (
                f"write the handlers of {', '.join(left)} into [plugins.'{reading.section}'] of {reading.section_in} "
                f"instead of an import, with which containerd 1.x would drop all settings that {reading.section_in} "
                "has in that section"
            )
        yield Defect(
            f"{', '.join(left)} has no effect, because {where.file} does not import this file",
            f"{add}, and run {where.service}",
        )


def _hidden(where: Distribution, reading: _ConfigFiles) -> Iterator[Defect]:
    """Yield the defect that a file with NVIDIA's handler has no effect, and no other file has the handler."""
    if any(map(is_nvidias, reading.handlers.values())):
        return
    for file, section in reading.hidden.items():
        yield Defect(
            f"NVIDIA's handler in {file} has no effect: containerd 1.x takes [plugins.'{section}'] whole from the file "
            f"read last that has the section, {reading.section_in}",
            f"move all settings of that section into {reading.section_in}, those of {file} included, and run "
            f"{where.service}",
        )


def _handlers(section: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the handlers of a CRI section with their programs."""
    for name, handler in table(section, "containerd", "runtimes").items():
        options = table(handler, "options")
        # Version 1 wrote Runtime, for containers of the first shim.
        yield name, text(options.get("BinaryName")) or text(options.get("Runtime"))


def _imports(host: HostRoot, file: str, content: Mapping[str, object]) -> Iterator[str]:
    """Yield the files that a file imports, which may have wildcards, or be relative to the file's directory."""
    for each in texts(content.get("imports")):
        path = each if each.startswith("/") else f"{file.rpartition('/')[0]}/{each}"
        yield from host.matching(path)
