"""NVIDIA's container toolkit: its version, and the settings of its runtime.

Facts, of NVIDIA/nvidia-container-toolkit: api/config/v1/config.go (the keys and their defaults, the path
`/etc/nvidia-container-runtime/config.toml`); internal/info/auto.go (modes; `auto` is just-in-time CDI from 1.18 on, and
legacy before); internal/modifier/cdi.go (in mode `cdi`, a variable names the device `<default-kind>=<value>` of a
specification); cmd/nvidia-ctk-installer/toolkit (NVIDIA's operator installs into `/usr/local/nvidia/toolkit` and writes
`.config/nvidia-container-runtime/config.toml` there, with libnvidia-container.so of the same version). Issue 381:
`no-cgroups` is for rootless containers; in a pod, NVML then fails with Unknown Error. From 1.18 on, the package has the
service `nvidia-cdi-refresh` (deployments/systemd; its folder in packaging/debian/nvidia-container-toolkit-base.install,
/etc/systemd/system up to 1.19). Hooks are left out of just-in-time specifications by `nvcdi-disable-hooks`
(api/config/v1/runtime.go), and of generated ones by NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS
(cmd/nvidia-ctk/cdi/generate/generate.go), which the service reads from its file of variables; `all` is every hook.
Legacy mode adds the prestart hook `nvidia-container-runtime-hook` (internal/modifier/stable.go), which runs
`nvidia-container-cli`; a setting `path` counts, else the search path (api/config/v1/config.go, `resolveWithDefault`;
cmd/nvidia-container-runtime-hook/main.go, `getCLIPath`). The hook is in the package nvidia-container-toolkit, not in
nvidia-container-toolkit-base (packaging/debian/*.install, packaging/rpm/SPECS), and the command in
libnvidia-container-tools, which the first needs (packaging/debian/control; NVIDIA/libnvidia-container,
pkg/rpm/SPECS/libnvidia-container.spec); the operator installs both (cmd/nvidia-ctk-installer/toolkit/installer).
In legacy mode, a setting `ldconfig` that begins with @ is a program of the node, whatever `root` is, and no container
starts without the program (NVIDIA/libnvidia-container, src/nvc_ldcache.c, `nvc_ldcache_update`); the program may be
there with or without the ending .real (the toolkit's api/config/v1, `ldconfigPath.normalize`).

Facts, of NVIDIA/gpu-operator: the operator sets `default-kind` to `management.nvidia.com/gpu`
(assets/state-container-toolkit/0500_daemonset.yaml), and no GPU has a device of this kind (issue 1239 of the toolkit);
from 25.10 on it sets mode `cdi`, and its runtime is not the default one (controllers/object_controls.go,
`transformToolkitCtrForCDI`). Each start of the pod nvidia-container-toolkit-daemonset installs the toolkit
into an empty directory and writes its settings anew, for which `toolkit.env` has variables, two of them with the
names of the settings that accept GPUs (cmd/nvidia-ctk-installer/main.go and toolkit/toolkit.go of the toolkit).
"""

import re
from collections.abc import Iterator

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.doctor.node.packages import is_at_least, package_version
from gpushare_plugin.doctor.node.toml_files import TomlError, read_toml
from gpushare_plugin.doctor.subjects.driver import DriverFacts, library_below, version_of
from gpushare_plugin.doctor.subjects.runtimes.distributions import TEMPLATES
from gpushare_plugin.doctor.subjects.runtimes.runtime import (
    NVIDIAS_RUNTIME,
    OPERATORS_POD,
    RuntimeFacts,
    table,
    text,
    texts,
)
from gpushare_plugin.gpus.cdi.roots import OPERATORS_TOOLKIT

VERSION, SETTINGS = "container toolkit", "settings of the container toolkit"

_SETTINGS = "/etc/nvidia-container-runtime/config.toml"
_OPERATORS_SETTINGS = f"{OPERATORS_TOOLKIT}/.config/nvidia-container-runtime/config.toml"
_LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
_LIBRARY = "libnvidia-container.so.*.*.*"
_PACKAGES = ("nvidia-container-toolkit-base", "nvidia-container-toolkit")
_REFRESHING_SERVICE = tuple(
    f"{folder}/systemd/system/nvidia-cdi-refresh.service" for folder in ("/usr/lib", "/lib", "/etc")
)
REFRESH_VARIABLES = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
"""The variables of the service that writes the specification."""
DISABLED_HOOKS = "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS"
"""The variable with the hooks that a generated specification leaves out."""
_ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
_HOOK, _CLI = "nvidia-container-runtime-hook", "nvidia-container-cli"
_INSTALL_LDCONFIG = "install ldconfig (package libc-bin, or glibc)"
_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
_FIRST_JIT = (1, 18)
"""The first version whose mode `auto` generates the specifications itself."""
_CONTROL, _CDI_HOOK = "nvidia-ctk", "nvidia-cdi-hook"
"""What generates specifications, and what the hooks of specifications run."""
_FIRST_CDI_HOOK = (1, 16)
"""The first version with `nvidia-cdi-hook`; before, hooks run `nvidia-ctk` (CHANGELOG.md of the toolkit)."""


class ToolkitFacts(Struct, frozen=True):
    """What the node shows of the toolkit; the settings have the defaults of the toolkit where no file says more."""

    version: str = ""
    """The version; empty if not known."""
    directory: str | None = None
    """The directory with the programs, a path of the node; None without a toolkit."""
    lacks: tuple[str, ...] = ()
    """The programs for specifications that are missing in `directory`, by name."""
    file: str | None = None
    """The settings, a path of the node; None without a file."""
    failure: str = ""
    """Why the settings cannot be read, with their file; empty without a problem."""
    correction: str = ""
    """What to do about `failure`, as an instruction."""
    mode: str = "auto"
    """How the runtime gives GPUs to containers."""
    default_kind: str = "nvidia.com/gpu"
    """The kind of the CDI devices that mode `cdi` looks for."""
    variable: bool = True
    """Whether an unprivileged container may ask by NVIDIA_VISIBLE_DEVICES."""
    mounts: bool = False
    """Whether a container may ask by mounts."""
    no_cgroups: bool = False
    """Whether containers get device nodes without the right to use them."""
    driver_root: str = "/"
    """Where legacy mode looks for the driver."""
    legacy_programs: tuple[str, ...] = (_HOOK, _CLI)
    """The programs that legacy mode runs for each container, as paths of the node or names."""
    legacy_lacks: tuple[str, ...] = ()
    """Those of these programs that the node does not have."""
    ldconfig: str = ""
    """The program of the node with which legacy mode makes the cache of libraries; empty where no setting names it."""
    ldconfig_there: str = "/sbin/ldconfig"
    """The program of the node that makes this cache; empty where the node has none in the usual places."""
    astray: tuple[str, ...] = ()
    """The settings of legacy mode that lead nowhere, of `root` (to the driver) and `ldconfig`."""
    by_operator: bool = False
    """Whether NVIDIA's operator installs this toolkit, and so writes its settings."""
    replaced_by: str = ""
    """What replaces a toolkit that is left of an operator, as an instruction; empty for any other toolkit."""
    refreshes: bool = False
    """Whether the package has the service that writes the specification `/var/run/cdi/nvidia.yaml` at each boot."""

    disabled_hooks: tuple[str, ...] = ()
    """The hooks that the runtime leaves out of just-in-time specifications."""
    refresh_disabled_hooks: tuple[str, ...] = ()
    """The hooks that the service leaves out of its specification."""

    @property
    def just_in_time(self) -> bool | None:
        """Whether the runtime makes the specification of each container itself; None if the version is not known."""
        if self.mode in {"auto", "jit-cdi"}:
            return is_at_least(self.version, *_FIRST_JIT) if self.version else None
        return False

    @property
    def legacy(self) -> bool:
        """Whether the runtime certainly has legacy mode."""
        return self.mode == "legacy" or (self.mode == "auto" and self.just_in_time is False)

    @property
    def legacy_works(self) -> bool:
        """Whether NVIDIA's runtime would find what it needs in legacy mode."""
        return not self.legacy_lacks and not self.astray

    @property
    def by_specification(self) -> bool:
        """Whether the runtime looks devices up in CDI specifications of the node."""
        return self.mode == "cdi"


def read_toolkit(host: HostRoot, runtime: RuntimeFacts | None, driver: DriverFacts, *, operator: bool) -> ToolkitFacts:
    """Return what the node shows of the toolkit whose runtime `runtime` starts.

    `operator` is whether NVIDIA's operator installs a toolkit on this node.
    """
    directory = _directory(host, runtime, operator=operator)
    of_operator = directory == OPERATORS_TOOLKIT
    file = host.first(_OPERATORS_SETTINGS if of_operator else _SETTINGS)
    version = _version(host, directory)
    facts = ToolkitFacts(
        version=version,
        directory=directory,
        lacks=_lacks(host, directory, version),
        file=file,
        by_operator=of_operator and operator,
        replaced_by=_replacement(host, runtime) if of_operator and not operator else "",
        refreshes=host.first(*_REFRESHING_SERVICE) is not None,
        refresh_disabled_hooks=_listed(host.line(REFRESH_VARIABLES)),
    )
    try:
        settings = read_toml(host, file) if file else {}
    except UnreadableError as error:
        return replace(facts, failure=str(error), correction=f"correct {file}")
    except TomlError as error:
        correction = writes_anew(file) if facts.by_operator else error.correction(f"{file}")
        return replace(facts, failure=f"{file}: {error}", correction=correction)
    return _looked_up(host, _with_settings(facts, settings), driver)


def _directory(host: HostRoot, runtime: RuntimeFacts | None, *, operator: bool) -> str | None:
    """Return where the runtime's handlers lead, else where the toolkit is on the node."""
    for program in (runtime.nvidia if runtime else {}).values():
        if program.startswith("/") and host.exists(program):
            return program.rpartition("/")[0]
    of_operator = (f"{OPERATORS_TOOLKIT}/{name}" for name in (_CONTROL, NVIDIAS_RUNTIME) if operator)
    found = host.first(*of_operator, f"/usr/bin/{_CONTROL}")
    return found.rpartition("/")[0] if found else None


def _replacement(host: HostRoot, runtime: RuntimeFacts | None) -> str:
    """Return what replaces the toolkit of an operator that is gone, as an instruction."""
    install = "install the package nvidia-container-toolkit"
    if runtime is None:
        return f"{install}, and have the container runtime use its programs"
    if runtime.edited:
        beside = (f"{file.rpartition('/')[0]}/{name}" for file in runtime.edited for name in TEMPLATES)
        named = ", ".join(each for each in beside if OPERATORS_TOOLKIT in host.line(each))
        write = f"write /usr/bin instead of {OPERATORS_TOOLKIT} into {named}, " if named else ""
        remove = f"`rm -r {OPERATORS_TOOLKIT}`, and run {runtime.service}, whose start finds the package"
        return f"{install}, {write}{remove}"
    files = ", ".join(dict.fromkeys(runtime.handler_files.get(name, name) for name in runtime.nvidia))
    return (
        f"{install}, remove the handlers with programs in {OPERATORS_TOOLKIT} from {files}, `rm -r "
        f"{OPERATORS_TOOLKIT}`, and {runtime.adds_nvidia}"
    )


def _lacks(host: HostRoot, directory: str | None, version: str) -> tuple[str, ...]:
    """Return the programs for specifications that a toolkit of this version should have, and lacks."""
    if directory is None:
        return ()
    expected = (_CONTROL, _CDI_HOOK) if is_at_least(version, *_FIRST_CDI_HOOK) else (_CONTROL,)
    return tuple(name for name in expected if not host.exists(f"{directory}/{name}"))


def _listed(variables: str) -> tuple[str, ...]:
    """Return the hooks that variables of the service disable."""
    found = re.findall(rf"^\s*{DISABLED_HOOKS}=\"?([^\"\n]*)", variables, re.MULTILINE)
    return tuple(name.strip() for name in found[-1].split(",")) if found else ()


def _with_settings(facts: ToolkitFacts, content: dict[str, object]) -> ToolkitFacts:
    runtime, command = table(content, "nvidia-container-runtime"), table(content, "nvidia-container-cli")
    return replace(
        facts,
        mode=text(runtime.get("mode")) or facts.mode,
        default_kind=text(table(runtime, "modes", "cdi").get("default-kind")) or facts.default_kind,
        variable=content.get(_ENVVAR) is not False,
        mounts=content.get(_MOUNTS) is True,
        no_cgroups=command.get("no-cgroups") is True,
        driver_root=text(command.get("root")) or facts.driver_root,
        ldconfig=ldconfig[1:] if (ldconfig := text(command.get("ldconfig"))).startswith("@") else "",
        legacy_programs=(text(table(content, _HOOK).get("path")) or _HOOK, text(command.get("path")) or _CLI),
        disabled_hooks=texts(table(runtime, "modes", "jit-cdi").get("nvcdi-disable-hooks")),
    )


def _looked_up(host: HostRoot, facts: ToolkitFacts, driver: DriverFacts) -> ToolkitFacts:
    """Return the facts with what of the places that the settings name is not on the node."""
    folder, ldconfig = facts.directory or "", facts.ldconfig.removesuffix(".real")
    places = {
        "root": _leads_to(host, facts, driver),
        "ldconfig": not ldconfig or host.first(f"{ldconfig}.real", ldconfig),
    }
    return replace(
        facts,
        legacy_lacks=tuple(each for each in facts.legacy_programs if not host.has_program(each, folder)),
        ldconfig_there=next((each for each in _LDCONFIG if host.first(f"{each}.real", each)), ""),
        astray=tuple(name for name, found in places.items() if not found),
    )


def _leads_to(host: HostRoot, facts: ToolkitFacts, driver: DriverFacts) -> bool:
    """Return whether a driver is where the settings look for it; that of an operator that is gone has to be in use."""
    library = library_below(host, facts.driver_root)
    return library is not None and (not facts.replaced_by or version_of(host, library) == driver.library)


def _version(host: HostRoot, directory: str | None) -> str:
    if directory != OPERATORS_TOOLKIT and (found := package_version(host, *_PACKAGES)):
        return found
    folders = (directory,) if directory == OPERATORS_TOOLKIT else _LIBRARY_FOLDERS
    for folder in folders:
        for name in host.names(folder, _LIBRARY):
            return name.partition(".so.")[2]
    return ""


def judge_toolkit(toolkit: ToolkitFacts, needs: ConfigNeeds, driver: DriverFacts) -> Iterator[Diagnosis]:
    """Yield the lines about the toolkit and its settings; the toolkit of an operator that is gone is to be replaced."""
    for line in _judged(toolkit, needs, driver):
        yield replace(line, remedy=toolkit.replaced_by) if line.remedy and toolkit.replaced_by else line


def _judged(toolkit: ToolkitFacts, needs: ConfigNeeds, driver: DriverFacts) -> Iterator[Diagnosis]:
    if toolkit.directory is None:
        yield _missing(needs)
        return
    yield _programs(toolkit, needs)
    if toolkit.failure:
        yield wrong(SETTINGS, f"{toolkit.failure}, so the toolkit cannot read it", toolkit.correction)
        return
    mistakes = list(_mistakes(toolkit, needs, driver)) if needs.runtime else []
    yield from mistakes
    if not mistakes:
        yield right(SETTINGS, f"{toolkit.file or 'no file, so its defaults'}: mode {_mode(toolkit)}")


def _missing(needs: ConfigNeeds) -> Diagnosis:
    if not needs.runtime:
        return right(VERSION, "not installed; the config uses CDI, which needs specifications only")
    return wrong(
        VERSION,
        "not installed: /usr/bin/nvidia-ctk is not there, and NVIDIA's operator installs no toolkit on this node",
        "install the package nvidia-container-toolkit (docs.nvidia.com, Installing the NVIDIA Container Toolkit) or "
        "NVIDIA's operator with toolkit.enabled=true",
    )


def _programs(toolkit: ToolkitFacts, needs: ConfigNeeds) -> Diagnosis:
    """Return the line about the programs of a toolkit that is there."""
    lacks = f", which lacks {' and '.join(toolkit.lacks)}" if toolkit.lacks else ""
    found = f"{toolkit.version or 'version unknown'}, in {toolkit.directory}{lacks}"
    if not lacks_hooks(toolkit, needs):
        return right(VERSION, found)
    return wrong(
        VERSION,
        f"{found}, so a container that gets a GPU by CDI cannot start: its hooks run {_CDI_HOOK}",
        installs_again(toolkit),
    )


def lacks_hooks(toolkit: ToolkitFacts, needs: ConfigNeeds) -> bool:
    """Return whether the toolkit lacks the program that hooks of specifications run, and containers need it."""
    by_hooks = needs.cdi or needs.dra or toolkit.by_specification or toolkit.just_in_time
    return _CDI_HOOK in toolkit.lacks and bool(by_hooks)


def installs_again(toolkit: ToolkitFacts) -> str:
    """Return what brings missing programs of the toolkit back, as an instruction."""
    if toolkit.by_operator:
        return (
            "install the toolkit of NVIDIA's operator again: see the state and the log of the pod "
            "nvidia-container-toolkit-daemonset on this node, and delete this pod (`kubectl delete pod`), because its "
            "start installs the toolkit"
        )
    if toolkit.replaced_by:
        return toolkit.replaced_by
    return (
        f"install NVIDIA's container toolkit in {toolkit.directory} again (`apt-get install --reinstall "
        "nvidia-container-toolkit-base`, or `dnf reinstall nvidia-container-toolkit-base`)"
    )


def writes_anew(file: str | None) -> str:
    """Return what has NVIDIA's operator write the settings of its toolkit anew, as an instruction."""
    return f"delete the pod {OPERATORS_POD} on this node (`kubectl delete pod`): its start writes {file} anew"


def _accepts(toolkit: ToolkitFacts, setting: str) -> str:
    """Return what turns on a setting by which containers may ask for GPUs, as an instruction."""
    file = toolkit.file or _SETTINGS
    if toolkit.by_operator:
        variable = setting.upper().replace("-", "_")
        return f"set {variable}=true in toolkit.env of NVIDIA's operator, which writes {file} itself"
    return f"set {setting} = true in {file}"


def _mistakes(toolkit: ToolkitFacts, needs: ConfigNeeds, driver: DriverFacts) -> Iterator[Diagnosis]:
    """Yield a line for each setting that keeps containers from their GPUs."""
    file = toolkit.file
    if "envvar" in needs.strategies and not toolkit.variable:
        yield wrong(
            SETTINGS,
            f"{file} has {_ENVVAR} = false, so only privileged containers get a GPU by NVIDIA_VISIBLE_DEVICES",
            f"{_accepts(toolkit, _ENVVAR)}; or let pods ask by mounts: deviceListStrategy volume-mounts for gpushare, "
            f"and {_accepts(toolkit, _MOUNTS)}",
        )
    if "volume-mounts" in needs.strategies and not toolkit.mounts:
        yield wrong(
            SETTINGS,
            f"{file or 'the default of the toolkit'} has {_MOUNTS} = false, but the config gives GPUs by mounts "
            "(deviceListStrategy volume-mounts)",
            _accepts(toolkit, _MOUNTS),
        )
    if toolkit.no_cgroups:
        change = f"set no-cgroups = false in the table nvidia-container-cli of {file}"
        yield wrong(
            SETTINGS,
            f"{file} has no-cgroups = true, so a container has device nodes and no right to use them (Failed to "
            "initialize NVML: Unknown Error)",
            f"{writes_anew(file) if toolkit.by_operator else change}. This applies to new containers: restart pods "
            "that have a GPU",
        )
    if toolkit.legacy_lacks:
        yield from _without_programs(toolkit)
    yield from _leading_nowhere(toolkit, driver)


def _leading_nowhere(toolkit: ToolkitFacts, driver: DriverFacts) -> Iterator[Diagnosis]:
    """Yield the line about settings that name no place of the driver."""
    found, given = [], []
    if "root" in toolkit.astray and toolkit.mode in {"auto", "legacy"} and driver.root:
        found.append(f"looks for the driver below {toolkit.driver_root} (root), but the driver is below {driver.root}")
        given.append(f'root = "{driver.root}"')
    if "ldconfig" in toolkit.astray and toolkit.legacy:
        found.append(
            f"names {toolkit.ldconfig} as ldconfig, which is not on the node, so a pod with NVIDIA's runtime cannot "
            "start (ldcache error)"
        )
        if toolkit.ldconfig_there:
            given.append(f'ldconfig = "@{toolkit.ldconfig_there}"')
    if not found:
        return
    file = toolkit.file or _SETTINGS
    remedy = f"set {' and '.join(given)} in the table nvidia-container-cli of {file}" if given else _INSTALL_LDCONFIG
    if toolkit.by_operator:
        remedy = f"{writes_anew(file)}, with the places of the driver"
    yield wrong(SETTINGS, f"{file}, in the table nvidia-container-cli, {', and '.join(found)}", remedy)


def _without_programs(toolkit: ToolkitFacts) -> Iterator[Diagnosis]:
    """Yield the line about programs of legacy mode that are gone, where the runtime has this mode."""
    if not toolkit.legacy:
        return
    remedy = (
        "install the package nvidia-container-toolkit; nvidia-container-toolkit-base alone is not enough in this mode"
    )
    if toolkit.by_operator:
        remedy = f"see the log of the operator's pod {OPERATORS_POD} on this node, which installs these programs"
    yield wrong(
        SETTINGS,
        f"mode {_mode(toolkit)} runs {' and '.join(toolkit.legacy_lacks)} for each container with a GPU, and the node "
        "has no such program, so a pod with NVIDIA's runtime cannot start",
        remedy,
    )


def _mode(toolkit: ToolkitFacts) -> str:
    if toolkit.by_specification:
        return f"cdi: GPUs are looked up as {toolkit.default_kind}=… in CDI specifications"
    if toolkit.mode != "auto" or not toolkit.version:
        return toolkit.mode
    return "auto: just-in-time CDI" if toolkit.just_in_time else "auto: legacy"
