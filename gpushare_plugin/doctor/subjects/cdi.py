"""The CDI specifications of the node: which devices they have, and whether a container that gets one can start.

Facts: NVIDIA/nvidia-container-toolkit, pkg/nvcdi (hooks are run on the node with `nvidia-cdi-hook`; a mount of a file
that is not there fails). NVIDIA's operator writes only `management.nvidia.com/gpu=all`, for its own pods
(cmd/nvidia-ctk-installer/toolkit/toolkit.go, `generateCDISpec`). The service `nvidia-cdi-refresh`: docs.nvidia.com,
NVIDIA Container Toolkit, "Support for Container Device Interface". A boot empties `/run`: Filesystem Hierarchy Standard
3.0, "/run". The runtime class `nvidia-legacy` is there with `cdi.enabled` (NVIDIA/gpu-operator,
controllers/object_controls.go, `RuntimeClasses`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import yaml

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.cdi import NVIDIA_PLUGIN_KIND, OWN_KIND
from gpushare_plugin.core.driver_limits import LIMITS_HOOK
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, one_of, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.node.needs import ConfigNeeds, by_cdi
from gpushare_plugin.doctor.subjects.driver import CUDA, LIBRARIES, DriverFacts
from gpushare_plugin.doctor.subjects.runtimes.runtime import (
    CDI_DIRECTORIES,
    OPERATORS_POD,
    RuntimeFacts,
    table,
    text,
    texts,
)
from gpushare_plugin.doctor.subjects.toolkit import VERSION, ToolkitFacts, installs_again, lacks_hooks, writes_anew
from gpushare_plugin.gpus.cdi.reading import SpecReader, parsed
from gpushare_plugin.gpus.cdi.roots import OPERATORS_TOOLKIT

SUBJECT = "CDI specifications"
_KIND_OF_GPUS = "nvidia.com/gpu"
"""The kind of the devices that NVIDIA's toolkit generates (cmd/nvidia-ctk/cdi/generate/generate.go)."""
MANAGEMENT_KIND = "management.nvidia.com/gpu"
"""The kind of the device that NVIDIA's operator makes for its own pods."""
_FILE_OF_OPERATOR = "management.nvidia.com-gpu."
"""The beginning of the name of the file with that device."""

_REFRESHED = "/run/cdi/nvidia.yaml"
"""The specification that the service of the toolkit writes."""
_LEGACY = ".legacy"
"""The end of the name of NVIDIA's runtime in legacy mode, which needs no specification."""
_TWICE = " both describe "
"""What `SpecReader` says of two files with the same devices; a file that is generated again would stay the second."""
_AGAIN = "; generate it again"
"""What `SpecReader` says of an outdated file; doctor names the command."""
_ONE_TOO_MANY = "remove one of the files that describe the same devices: the one that nothing writes again"
_STAYS_WRONG = (
    "doctor does not see the runtime classes of pods, so doctor goes on calling this line wrong then, which is no fault"
)
_NODES = "/dev/nvidia"
"""The beginning of the paths of the driver's device nodes, which nvidia-modprobe(1) makes when a program needs one."""
_NAMES_TO_SHOW = 3
_HOOK_PROGRAMS = frozenset({"nvidia-cdi-hook", "nvidia-ctk"})


class CdiFile(Struct, frozen=True):
    """What is in a specification besides devices; variables are left out, since they can be secret."""

    hooks: tuple[str, ...] = ()
    """What the hooks do, such as `update-ldcache`."""
    missing: tuple[str, ...] = ()
    """Programs of hooks, files of mounts and device nodes that are not on the node; such a container cannot start."""


class CdiFacts(Struct, frozen=True):
    """The specifications that the container runtime reads."""

    directories: tuple[str, ...]
    """The directories with specifications, paths of the node."""
    devices: Mapping[str, str]
    """The file that describes a device, a path of the node, by the name of the device, `nvidia.com/gpu=GPU-…`."""
    unusable: tuple[str, ...]
    """Why specifications or devices cannot be used."""
    files: Mapping[str, CdiFile]
    """What else is in the files with devices."""
    limiting: tuple[str, ...] = ()
    """The names of the devices with a hook that sets driver limits."""

    @property
    def kinds(self) -> Counter[str]:
        """How many devices there are of each kind."""
        return Counter(name.partition("=")[0] for name in self.devices)


def read_cdi(host: HostRoot, runtime: RuntimeFacts | None, driver: DriverFacts) -> CdiFacts:
    """Return the specifications in the directories that the container runtime reads."""
    directories = runtime.cdi_directories if runtime else CDI_DIRECTORIES
    places = {host.resolved(each): each for each in directories}
    # The libraries decide: where the kernel runs another driver, that is to be mended first.
    found = SpecReader(tuple(places), host.followed).devices(driver.library or driver.kernel)

    def of_node(said: str) -> str:
        """Return a text with the paths of the node."""
        for place, directory in places.items():
            said = said.replace(str(place), directory)
        return said

    devices = {name: of_node(file) for name, file in found.files.items()}
    return CdiFacts(
        directories,
        devices,
        tuple(of_node(reason).removesuffix(_AGAIN) for reason in found.unusable),
        {file: _beside_devices(host, file) for file in sorted(set(devices.values()))},
        tuple(sorted(found.limiting)),
    )


def _beside_devices(host: HostRoot, file: str) -> CdiFile:
    try:
        document = parsed((host.text(file) or "").encode(), f".{file.rpartition('.')[2]}")
    except (UnreadableError, ValueError, RecursionError, yaml.YAMLError):
        return CdiFile()  # changed since its devices were read
    edits = [table(each, "containerEdits") for each in (document, *_tables(table(document).get("devices")))]
    hooks = [hook for each in edits for hook in _tables(each.get("hooks"))]
    sources = [text(mount.get("hostPath")) for each in edits for mount in _tables(each.get("mounts"))]
    # A node with a number is made from that.
    nodes = [node for each in edits for node in _tables(each.get("deviceNodes")) if not node.get("major")]
    devices = [text(node.get("hostPath")) or text(node.get("path")) for node in nodes]
    paths = (*(text(hook.get("path")) for hook in hooks), *sources, *devices)
    # The source of a mount of the kernel's file systems, such as tmpfs, is no path.
    needed = dict.fromkeys(path for path in paths if path.startswith("/"))
    return CdiFile(
        tuple(dict.fromkeys(filter(None, map(_work, hooks)))),
        tuple(path for path in needed if not host.exists(path)),
    )


def _tables(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _work(hook: Mapping[str, object]) -> str:
    """Return what a hook of NVIDIA's does, or the name of another program, whose arguments can be secret."""
    program, *words = [*texts(hook.get("args")), ""]
    name = program.rpartition("/")[2]
    return next((word for word in words if word != "hook"), "") if name in _HOOK_PROGRAMS else name


class GpuNames(NamedTuple):
    """How a GPU is called in specifications."""

    name: str
    """The name of the GPU's device by the config: the UUID or the index."""
    uuid: str
    """The UUID, by which gpushare's own specification has the GPU in any case."""

    def of_kind(self, kind: str) -> str:
        """Return the name of the GPU's device of a kind."""
        return f"{kind}={self.uuid if kind == OWN_KIND else self.name}"


class SpecificationLook(Struct, frozen=True):
    """What the judgement of the specifications depends on."""

    cdi: CdiFacts
    """The specifications."""
    needs: ConfigNeeds
    """What the config needs."""
    toolkit: ToolkitFacts
    """The container toolkit, whose runtime may read the specifications, too."""
    driver: DriverFacts
    """The driver."""
    runtime: RuntimeFacts | None
    """The container runtime."""
    served: bool
    """Whether the daemon of gpushare runs on the node, which writes a specification of its own where none has a GPU."""
    gpus: tuple[GpuNames, ...] | None
    """The GPUs, None where the GPUs are not known."""

    @property
    def by_cdi(self) -> str:
        """What makes the daemon give GPUs by CDI, as an instruction."""
        told = self.runtime is not None and self.runtime.cdi is False and (self.needs.cdi or self.needs.dra)
        return by_cdi(self.needs, self.runtime.cdi_to_enable if self.runtime and not told else "")

    @property
    def legacy_handler(self) -> str:
        """The handler that runs NVIDIA's runtime in legacy mode and works; empty without one."""
        if self.runtime is None or not self.toolkit.legacy_works:
            return ""
        there = (name for name in self.runtime.nvidia if name not in self.runtime.gone)
        return next((name for name in there if self.runtime.nvidia[name].endswith(_LEGACY)), "")

    @property
    def gives_management(self) -> bool:
        """Whether a handler of NVIDIA's operator gives all GPUs by the device that the operator makes."""
        handlers = self.runtime is not None and bool(self.runtime.nvidia)
        by_device = self.toolkit.by_specification and self.toolkit.default_kind == MANAGEMENT_KIND
        return handlers and by_device and self.toolkit.by_operator

    @property
    def _kinds_of_config(self) -> tuple[str, ...]:
        """The kinds by which the daemon names GPUs, the first that a specification has."""
        return (self.needs.cdi_kind, NVIDIA_PLUGIN_KIND, OWN_KIND)

    def writes_itself(self, file: str) -> bool:
        """Return whether the daemon of gpushare writes a specification."""
        return any(file == each and name.startswith(f"{OWN_KIND}=") for name, each in self.cdi.devices.items())

    @property
    def devices_of_config(self) -> list[str | None]:
        """The device by which the daemon names each GPU, None for a GPU without a device.

        Where the GPUs are not known, each device of a GPU counts, and without any device there is one GPU.
        """
        there = self.cdi.devices
        if self.gpus is None:
            named = [name for name in there if name.partition("=")[0] in self._kinds_of_config]
            return [*(name for name in named if not name.endswith("=all"))] or [None]
        candidates = ([gpu.of_kind(kind) for kind in self._kinds_of_config] for gpu in self.gpus)
        return [next((name for name in names if name in there), None) for names in candidates]

    @property
    def needed(self) -> dict[tuple[str, ...], str]:
        """The groups of kinds of which every GPU needs a device of any kind, each with who needs that."""
        found: dict[tuple[str, ...], str] = {}
        if self.needs.cdi:
            found[self._kinds_of_config] = f"the config (deviceListStrategy {', '.join(self.needs.strategies)})"
        if self.needs.runtime and self.toolkit.by_specification and self.runtime and self.runtime.nvidia:
            found[self.toolkit.default_kind,] = f"NVIDIA's runtime in mode cdi ({self.toolkit.file})"
        return found


def judge_cdi(look: SpecificationLook) -> Iterator[Diagnosis]:
    """Yield a line for each group of kinds that is needed, and one for all other kinds."""
    of_daemon = list(_of_daemon(look))
    yield from of_daemon
    for kinds, user in look.needed.items():
        yield _of_kinds(look, kinds, user)
    used = {kind for kinds in look.needed for kind in kinds} | {look.needs.claim_kind}
    if of_daemon:
        used.add(MANAGEMENT_KIND)
    others = [f"{kind} ({count})" for kind, count in look.cdi.kinds.items() if kind not in used]
    unusable = "" if look.needed else _unusable_by_nobody(look)
    if others:
        yield right(SUBJECT, f"devices that the config does not use: {', '.join(others)}{unusable}")
    elif not look.needed:
        use = "the daemon writes one for each claim" if look.needs.dra else "the config does not use CDI"
        yield right(SUBJECT, f"none of GPUs in {' and '.join(look.cdi.directories)}; {use}{unusable}")


def _of_daemon(look: SpecificationLook) -> Iterator[Diagnosis]:
    """Yield the line about a broken device of NVIDIA's operator, where pods need no device of this kind.

    The daemon of gpushare has the GPUs by this device and a runtime class, as the operator's own pods do.
    """
    device = f"{MANAGEMENT_KIND}=all"
    if look.needs.runtime or not look.gives_management:
        return
    file = look.cdi.devices.get(device)
    gone = look.cdi.files[file].missing if file else ()
    if file and not gone:
        return
    broken = [reason for reason in look.cdi.unusable if _FILE_OF_OPERATOR in reason]
    found = (
        f"{file} names files that are not on the node: {some_of(gone, _NAMES_TO_SHOW)}"
        if file
        else f"no specification in {' or '.join(look.cdi.directories)} has {device}{_not_usable(broken)}"
    )
    written = file or next(filter(_is_operators, _unusable_files(look)), "the specification")
    yield wrong(
        SUBJECT,
        f"{found}. NVIDIA's runtime in mode cdi ({look.toolkit.file}) looks this device up, by which the daemon of "
        "gpushare gets the GPUs with a runtime class, so the daemon's pod cannot start",
        f"{writes_anew(written)}, where the driver of the operator is ready",
    )


def _not_usable(reasons: Sequence[str]) -> str:
    return f". Not usable: {'; '.join(reasons)}" if reasons else ""


def _unusable_by_nobody(look: SpecificationLook) -> str:
    """Return which files cannot be used, and what mends the first of them, where nobody needs any; empty if none."""
    if not look.cdi.unusable:
        return ""
    mends = f" For pods that ask for such a device, {_mends(look, (_KIND_OF_GPUS,))}" if _present(look) else ""
    return f". Not usable, and not used by the config: {'; '.join(look.cdi.unusable)}.{mends}"


def files_of(look: SpecificationLook, kinds: Sequence[str]) -> dict[str, CdiFile]:
    """Return the files with devices of any of the kinds."""
    there = (file for name, file in look.cdi.devices.items() if name.partition("=")[0] in kinds)
    return {file: look.cdi.files[file] for file in there}


def _of_kinds(look: SpecificationLook, kinds: Sequence[str], user: str) -> Diagnosis:
    """Return the line about kinds of which every GPU needs a device."""
    there = {name: file for name, file in look.cdi.devices.items() if name.partition("=")[0] in kinds}
    if missing := _without(look, kinds, there):
        return _lacking(look, kinds, f"{user} needs {missing}")
    files = files_of(look, kinds)
    if OWN_KIND in kinds:  # the file of a device that the daemon does not name is in nobody's way
        named = {look.cdi.devices[name] for name in look.devices_of_config if name}
        files = {file: each for file, each in files.items() if file in named}
    if gone := list(dict.fromkeys(path for each in files.values() for path in each.missing)):
        outdated = [file for file, each in files.items() if each.missing]
        found = f"{', '.join(outdated)} names files that are not on the node: {some_of(gone, _NAMES_TO_SHOW)}"
        if look.driver.cuda is None and all(f"/{CUDA}." in path or path.endswith(f"/{CUDA}") for path in gone):
            return not_looked_at(SUBJECT, f"{found}; do what is said of {LIBRARIES} first, which brings these files")
        by_daemon = not _are_nodes(gone) and all(look.writes_itself(file) for file in outdated)
        if by_daemon and not look.served:
            return not_looked_at(SUBJECT, f"{found}; the daemon of gpushare writes this file anew when it starts")
        return wrong(
            SUBJECT,
            f"{found}, so a pod with a GPU cannot start. {_why_gone(look, gone)}",
            _brings_back(look, kinds, gone, outdated[0] if by_daemon else ""),
        )
    return right(SUBJECT, f"{len(there)} devices for {user}, of {', '.join(files)}; {_hooks(look, files.values())}")


def _are_nodes(gone: Sequence[str]) -> bool:
    """Return whether all missing files are device nodes of the driver."""
    return all(path.startswith(_NODES) for path in gone)


def _of_toolkit(look: SpecificationLook, gone: Sequence[str]) -> bool:
    """Return whether files that a specification names are missing in the toolkit, and nowhere else."""
    return all(path.rpartition("/")[0] == look.toolkit.directory for path in gone)


def _why_gone(look: SpecificationLook, gone: Sequence[str]) -> str:
    if _are_nodes(gone):
        return "Nothing has made these device nodes since the boot"
    if _of_toolkit(look, gone):
        return f"The toolkit in {look.toolkit.directory} is not complete"
    return "The driver or the toolkit was changed after the specification was generated"


def _brings_back(look: SpecificationLook, kinds: Sequence[str], gone: Sequence[str], by_daemon: str) -> str:
    """Return what mends a specification that names missing files, as an instruction.

    A specification that is generated again names the same programs of the toolkit. `by_daemon` is the daemon's own
    file, if that is meant: the daemon looks for programs when it writes the file, and writes at its start.
    """
    if _are_nodes(gone):
        return (
            "run `nvidia-smi` and `nvidia-modprobe -u -c=0` on the node, which make the device nodes, and `systemctl "
            "enable --now nvidia-persistenced`, which has them made at each boot; where nodes are still missing, "
            f"{generates(look)}"
        )
    if _of_toolkit(look, gone) and not look.toolkit.replaced_by:
        return installs_again(look.toolkit)
    if by_daemon:
        return (
            "restart the daemon of gpushare on this node (delete its pod with `kubectl delete pod`): its start writes "
            f"{by_daemon} anew, with the programs and libraries that are on the node"
        )
    return generates(look) if OWN_KIND in kinds else _remedy(look, kinds)


def _lacking(look: SpecificationLook, kinds: Sequence[str], needed: str) -> Diagnosis:
    """Return the line about devices that no specification has; `needed` says which, and who needs them."""
    unusable = f" Not usable: {'; '.join(look.cdi.unusable)}." if look.cdi.unusable else ""
    where = f"no specification in {' or '.join(look.cdi.directories)} has that"
    if OWN_KIND in kinds and not look.served:
        own = f"{needed}, and {where}; the daemon will write one of its own.{unusable}"
        instead = f" To use {file} instead of the daemon's, {_mends(look, kinds)}" if (file := _present(look)) else ""
        return not_looked_at(SUBJECT, f"{own}{instead}")
    return wrong(
        SUBJECT,
        f"{needed}, and {where}, so a pod with a GPU cannot start (unresolvable CDI devices).{unusable} Usable: "
        f"{some_of(_usable(look.cdi), _NAMES_TO_SHOW) or 'nothing'}",
        _ONE_TOO_MANY if _are_twice(look, kinds) else f"{_writes_operators(look)}{_remedy(look, kinds)}",
    )


def _mends(look: SpecificationLook, kinds: Sequence[str]) -> str:
    """Return what makes a specification of the toolkit usable that is there, as an instruction."""
    return _ONE_TOO_MANY if _are_twice(look, kinds) else generates(look)


def _usable(cdi: CdiFacts) -> list[str]:
    """Return the names of the devices with which a container can start."""
    return sorted(name for name, file in cdi.devices.items() if not cdi.files[file].missing)


def _are_twice(look: SpecificationLook, kinds: Sequence[str]) -> bool:
    """Return whether two files describe the same devices of one of the kinds."""
    twice = [reason for reason in look.cdi.unusable if _TWICE in reason]
    return any(f"{kind}=" in reason for reason in twice for kind in kinds)


def _hooks(look: SpecificationLook, files: Iterable[CdiFile]) -> str:
    hooks = dict.fromkeys(hook for each in files for hook in each.hooks)
    limits = "" if LIMITS_HOOK in hooks else f"; no {LIMITS_HOOK}, so CDI sets no memory limits of the driver"
    unknown = "; whether every GPU has one is not known without NVML" if look.gpus is None else ""
    return f"hooks: {', '.join(hooks) or 'none'}{limits}{unknown}"


def _without(look: SpecificationLook, kinds: Sequence[str], there: Mapping[str, str]) -> str:
    """Return the GPUs without a device of any kind, in words; empty if every GPU has one, as far as that is known."""
    if look.gpus is None:
        return "" if any(not name.endswith("=all") for name in there) else f"{kinds[0]}=… for each GPU"
    missing = [gpu for gpu in look.gpus if not any(gpu.of_kind(kind) in there for kind in kinds)]
    return some_of([gpu.of_kind(kinds[0]) for gpu in missing], _NAMES_TO_SHOW)


def _remedy(look: SpecificationLook, kinds: Sequence[str]) -> str:
    """Return the ways to give every GPU a device of one of the kinds, the best one here first."""
    if OWN_KIND in kinds:
        return one_of(
            "read why the daemon has no specification of its own, in the warning of `gpushare list` or at "
            "cdi_spec_not_written in its log (docs/cdi.md, What the daemon needs for it)",
            generates(look),
        )
    if look.toolkit.replaced_by:
        return look.toolkit.replaced_by
    change, legacy = look.by_cdi, look.legacy_handler
    others = (f"give the daemon and pods runtimeClassName {legacy}; {_STAYS_WRONG}",) if legacy else ()
    generate = ". Then ".join(_by_specification(look, kinds))
    # The node keeps the way that it has, if it has one: a file to generate again, or the service of the toolkit.
    best = (generate, change) if _present(look) or is_refreshed(look) else (change, generate)
    return one_of(*best, *others)


def _writes_operators(look: SpecificationLook) -> str:
    """Return what writes the operator's own specification again, as a first step; empty where that is not needed."""
    files = dict.fromkeys(file for file in _unusable_files(look) if _is_operators(file))
    if not files or not look.toolkit.by_operator:
        return ""
    return (
        f"delete the pod {OPERATORS_POD} on this node (`kubectl delete pod`): its start writes {', '.join(files)} "
        "again, by which the operator's own pods and the daemon of gpushare get the GPUs. Then "
    )


def _by_specification(look: SpecificationLook, kinds: Sequence[str]) -> Iterator[str]:
    """Yield the steps after which the runtime finds the GPUs in a specification of NVIDIA's toolkit."""
    if kinds != (MANAGEMENT_KIND,):
        yield generates(look)
        return
    there = {name: file for name, file in look.cdi.devices.items() if name.startswith(f"{_KIND_OF_GPUS}=")}
    stale = any(file.missing for file in files_of(look, (_KIND_OF_GPUS,)).values())
    if stale or _without(look, (_KIND_OF_GPUS,), there):
        yield generates(look)
    yield _of_other_kind(look)


def _of_other_kind(look: SpecificationLook) -> str:
    """Return what makes the runtime look GPUs up in a generated specification, as an instruction."""
    if look.toolkit.by_operator:
        return (
            "set NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND=nvidia.com/gpu in toolkit.env of the operator, "
            f"which writes {look.toolkit.file} itself"
        )
    return f'set default-kind = "nvidia.com/gpu" in [nvidia-container-runtime.modes.cdi] of {look.toolkit.file}'


def generates(look: SpecificationLook) -> str:
    """Return what generates the specification on this node, as an instruction."""
    told = lacks_hooks(look.toolkit, look.needs) and not look.toolkit.replaced_by
    installs = f"do what is said of {VERSION}" if told else installs_again(look.toolkit)
    again = f"{installs}, and then " if look.toolkit.lacks else ""
    if is_refreshed(look):
        return (
            f"{again}run `systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service && systemctl "
            f"restart nvidia-cdi-refresh.service` on the node. This service of the toolkit writes /var{_REFRESHED} "
            "again at each boot and after each change of the driver"
        )
    if look.driver.root is None:
        return f"do what is said of {LIBRARIES} first: doctor then names the command that makes the specification"
    replaced = bool(again and look.toolkit.replaced_by)
    directory = None if replaced else look.toolkit.directory
    program = f"{directory}/nvidia-ctk" if directory else "nvidia-ctk"
    install = again if directory or replaced else "install the package nvidia-container-toolkit-base, and then "
    root = f" --driver-root={look.driver.root}" if look.driver.root != "/" else ""
    hook = f" --nvidia-cdi-hook-path={OPERATORS_TOOLKIT}/nvidia-cdi-hook" if directory == OPERATORS_TOOLKIT else ""
    strategy = " --device-name-strategy=index" if look.needs.by_index else " --device-name-strategy=uuid"
    output = _present(look) or f"{look.cdi.directories[0]}/nvidia.yaml"
    boot = "each boot and " if _of_run(output).startswith("/run/") else ""
    command = f"{program} cdi generate{root}{hook}{strategy} --output={output}"
    return f"{install}run `{command}` on the node, and again after {boot}each change of the driver"


def is_refreshed(look: SpecificationLook) -> bool:
    """Return whether the service of the toolkit writes the file that is there, or a file for the container runtime."""
    file = _present(look)
    read = _REFRESHED.rpartition("/")[0] in map(_of_run, look.cdi.directories)
    return look.toolkit.refreshes and look.driver.root == "/" and (_of_run(file) == _REFRESHED if file else read)


def _of_run(path: str) -> str:
    """Return a path of the node without the link /var/run."""
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _present(look: SpecificationLook) -> str | None:
    """Return the file that has the devices, or should have them; None without such a file.

    The operator's own specification is none: its device is for the operator's pods, and the operator writes it again.
    """
    there = [file for name, file in look.cdi.devices.items() if name.startswith(f"{look.needs.cdi_kind}=")]
    return next((file for file in (*there, *_unusable_files(look)) if not _is_operators(file)), None)


def _unusable_files(look: SpecificationLook) -> Iterator[str]:
    """Yield the files of NVIDIA's devices that containers cannot use; a later directory counts more."""
    for directory in reversed(look.cdi.directories):
        named = re.compile(rf"{re.escape(directory)}/[^\s/]*nvidia[^\s/:,]*\.(?:yaml|json)")
        yield from (found[0] for reason in look.cdi.unusable if (found := named.search(reason)))


def _is_operators(file: str) -> bool:
    return file.rpartition("/")[2].startswith(_FILE_OF_OPERATOR)
