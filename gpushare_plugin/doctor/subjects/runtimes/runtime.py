"""What all container runtimes have in common: which programs start containers, and what gives containers their GPUs.

Facts: `nvidia-container-runtime`, `nvidia-container-runtime.cdi` and `nvidia-container-runtime.legacy` are NVIDIA's
runtime in its three forms (NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk-installer/container/operator/operator.go).
"""

from collections.abc import Mapping
from typing import NamedTuple

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.doctor.node.diagnosis import Defect

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
    """What restarts the runtime, such as `systemctl restart containerd`."""
    handlers: Mapping[str, str]
    """The program that starts containers, by the name of its handler; empty for the runtime's default program."""
    default: str
    """The handler of pods without a runtime class."""
    cdi: bool | None
    """Whether CDI is on; None if the version of the runtime decides, and is not known."""
    cdi_directories: tuple[str, ...] = CDI_DIRECTORIES
    """The directories with CDI specifications."""
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
    generated: bool = False
    """Whether each start makes the configuration anew, with handlers for the programs of NVIDIA that are there."""
    defects: tuple[Defect, ...] = ()
    """What keeps the configuration from working."""
    unread: tuple[str, ...] = ()
    """The files whose settings are not known, as their content is none of the runtime's."""

    @property
    def nvidia(self) -> dict[str, str]:
        """The handlers that run NVIDIA's runtime, with their programs."""
        return {name: program for name, program in self.handlers.items() if is_nvidias(program)}


class DefaultHandler(NamedTuple):
    """The handler that a configuration names for pods without a runtime class."""

    name: str
    """The name of the handler."""
    key: str
    """The setting that names the handler, such as `default_runtime`."""
    file: str
    """The file with that setting, a path of the node."""
    edited: str = ""
    """The file that people edit; empty for `file`."""


def unknown_default(
    default: DefaultHandler, handlers: Mapping[str, str], runtime: str, service: str
) -> tuple[Defect, ...]:
    """Return the defect that the default handler is none of the handlers of a runtime; nothing if it is one.

    `service` restarts the runtime.
    """
    if default.name in handlers:
        return ()
    return (
        Defect(
            f"{default.file} names the handler {default.name} as {default.key}, and there is no such handler "
            f"(handlers: {', '.join(handlers)}), so {runtime} does not serve the kubelet",
            f"set {default.key} in {default.edited or default.file} to one of these handlers and run {service}",
        ),
    )


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
