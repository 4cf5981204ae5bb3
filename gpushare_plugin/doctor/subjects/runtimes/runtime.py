"""What all container runtimes have in common: which programs start containers, and what gives containers their GPUs.

Facts: `nvidia-container-runtime`, `nvidia-container-runtime.cdi` and `nvidia-container-runtime.legacy` are NVIDIA's
runtime in its three forms (NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk-installer/container/operator/operator.go).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.doctor.node.diagnosis import Defect
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.node.toml_files import TomlError

NVIDIAS_RUNTIME = "nvidia-container-runtime"
"""The name of NVIDIA's runtime, and the beginning of the names of its other forms."""
OPERATORS_POD = "nvidia-container-toolkit-daemonset"
"""The pod that installs the toolkit of NVIDIA's operator (NVIDIA/gpu-operator, assets/state-container-toolkit)."""
FOR_PODS = (
    "then give the daemon and pods with a GPU a runtime class with the handler nvidia (runtimeClassName), or add "
    "--set-as-default to the command, so that every pod gets that runtime"
)
"""What `nvidia-ctk runtime configure` leaves to do (its option --set-as-default: cmd/nvidia-ctk/runtime/configure)."""
CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""The directories with CDI specifications by default (cncf-tags/container-device-interface, SPEC.md)."""

OF_BOOT = "/var/run/cdi"
"""The directory with specifications that a boot empties, where the daemon writes those of claims."""


def is_of_boot(directory: str) -> bool:
    """Return whether a directory is that of specifications which a boot empties, by any of its two names."""
    return directory.rstrip("/") in {OF_BOOT, OF_BOOT.removeprefix("/var")}


class RuntimeFacts(Struct, frozen=True):
    """What the configuration of a container runtime says; no more of it is kept, because there can be passwords."""

    name: str
    """`containerd`, `CRI-O` or `Docker`."""
    files: tuple[str, ...]
    """The files that were read, paths of the node, the first file first."""
    service: str
    """What restarts the runtime, in words with the command, such as "`systemctl restart containerd`"."""
    handlers: Mapping[str, str]
    """The program that starts containers, by the name of its handler; empty for the runtime's default program."""
    default: str
    """The handler of pods without a runtime class."""
    cdi: bool | None
    """Whether CDI is on; None if the version of the runtime decides, and is not known."""
    cdi_directories: tuple[str, ...] = CDI_DIRECTORIES
    """The directories with CDI specifications."""
    default_setting: str = ""
    """The setting that names `default`, with the file in which people edit it; empty where no file names a handler."""
    version: str = ""
    """The version of the runtime; empty if not known."""
    enables_cdi: str = ""
    """What turns CDI on, as an instruction."""
    adds_nvidia: str = ""
    """What adds a handler for NVIDIA's runtime, as an instruction."""
    misplaced: tuple[str, ...] = ()
    """Handlers of NVIDIA's runtime that have no effect where they are written."""
    handler_files: Mapping[str, str] = field(default_factory=dict)
    """The file that defines a handler, a path of the node, by the name of the handler."""
    edited: Mapping[str, str] = field(default_factory=dict)
    """What people edit instead of a file that each start makes anew, in words, by the file.

    Such a file has a handler for each program of NVIDIA's that is there at the start.
    """
    without_systemd: tuple[str, ...] = ()
    """The handlers of NVIDIA's runtime whose control groups systemd does not make, though it makes those of runc."""
    notes: tuple[str, ...] = ()
    """What does not work as somebody may expect, and has nothing to do with GPUs, as sentences."""
    gone: tuple[str, ...] = ()
    """The handlers of NVIDIA's runtime whose programs are not on the node."""
    defects: tuple[Defect, ...] = ()
    """What keeps the configuration from working."""
    unread: tuple[str, ...] = ()
    """The files whose settings are not known, as their content is none of the runtime's."""

    @property
    def nvidia(self) -> dict[str, str]:
        """The handlers that run NVIDIA's runtime, with their programs."""
        return {name: program for name, program in self.handlers.items() if is_nvidias(program)}

    @property
    def generated(self) -> bool:
        """Whether each start makes the configuration anew, with handlers for the programs of NVIDIA that are there."""
        return bool(self.edited)

    @property
    def cdi_to_enable(self) -> str:
        """What turns CDI on, as an instruction; empty where CDI is on."""
        return "" if self.cdi else self.enables_cdi

    @property
    def edited_files(self) -> str:
        """The files of the configuration, each as people edit it, in words."""
        return ", ".join(self.edited.get(file, file) for file in self.files)


class DefaultHandler(NamedTuple):
    """The handler that a configuration names for pods without a runtime class."""

    name: str
    """The name of the handler."""
    key: str
    """The setting that names the handler, such as `default_runtime`."""
    file: str
    """The file with that setting, a path of the node."""
    edited: str = ""
    """What people edit for that setting, in words; empty for `file`."""
    elsewhere: str = ""
    """The setting of which a start makes that setting, with its place; empty where people edit the setting itself."""
    brought_by: str = ""
    """The file with the handler that another remedy puts into effect; empty without one."""

    @property
    def setting(self) -> str:
        """The setting with the place where people edit it, such as `default_runtime in /etc/crio/crio.conf`."""
        return self.elsewhere or f"{self.key} in {self.edited or self.file}"


def unreadable(file: str, error: UnreadableError | TomlError, runtime: str, service: str) -> Defect:
    """Return the defect that a file cannot be read by a container runtime, which `service` restarts."""
    if isinstance(error, TomlError):
        return Defect(f"{file}: {error}, so {runtime} cannot read it", f"{error.correction(file)}, and run {service}")
    return Defect(f"{error}", f"correct {file} and run {service}")


def unknown_default(
    host: HostRoot, default: DefaultHandler, handlers: Mapping[str, str], runtime: str, service: str
) -> tuple[Defect, ...]:
    """Return the defect that the default handler is none of the handlers of a runtime; nothing if it is one.

    `service` restarts the runtime.
    """
    if default.name in handlers:
        return ()
    found = (
        f"{default.file} names the handler {default.name} as {default.key}, and there is no such handler (handlers: "
        f"{', '.join(handlers)}), so {runtime} does not serve the kubelet"
    )
    if default.brought_by:
        mend = f"do what is said of {default.brought_by}, which has the handler {default.name}"
        return (Defect(found, f"{mend}: {default.setting} is right then"),)
    there = [name for name, program in handlers.items() if not is_nvidias(program) or host.has_program(program)]
    return (Defect(found, f"set {default.setting} to {_best(handlers, there)}, and run {service}"),)


def _best(handlers: Mapping[str, str], there: Sequence[str]) -> str:
    """Return which of the handlers that are there is the one for pods without a runtime class, in words."""
    nvidias = [name for name in there if is_nvidias(handlers[name])]
    others = [name for name in there if name not in nvidias]
    if not nvidias:
        return others[0]
    best = "nvidia" if "nvidia" in nvidias else nvidias[0]
    return f"{best}, with which every pod can get a GPU, or to {others[0]}, with which a pod needs a runtime class"


def is_nvidias(program: str) -> bool:
    """Return whether a program that starts containers is NVIDIA's runtime."""
    return program.rpartition("/")[2].startswith(NVIDIAS_RUNTIME)


def table(value: object, *path: str) -> Mapping[str, object]:
    """Return the table at `path` in a decoded TOML or JSON file; empty where there is anything else."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """Return a value of a decoded file that is a text, an empty one for anything else."""
    return value if isinstance(value, str) else ""


def texts(value: object) -> tuple[str, ...]:
    """Return the texts in a list of a decoded file; none for anything else."""
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
