"""Common options of several commands; the options for configs are in `inputs` and `setting_options`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.kubelet.paths import DEFAULT_PLUGIN_DIRECTORY, DEFAULT_POD_RESOURCES_SOCKET
from gpushare_plugin.observe.http.address import parse_address

Command = TypeVar("Command", bound=Callable[..., Any])

LOG_LEVELS = ("debug", "info", "warning", "error")
"""The levels of the log, from the least to the most important."""


class _GivenPath(click.Path):
    """A path that is not empty; Python would take an empty path for the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fail for an empty path."""
        if value == "":
            self.fail("found an empty path; is a variable of a script not set?", param, ctx)
        return super().convert(value, param, ctx)


A_PATH = _GivenPath(path_type=Path, readable=False)
"""A path in the file system. The reader of the file, not click, reports a file that cannot be read."""


def option(name: str, meaning: str, **kind: Any) -> Callable[[Command], Command]:
    """Return a click option with the help `meaning`; the environment variable has the option's name in capitals."""
    variable = name.removeprefix("--").replace("-", "_").upper()
    if isinstance(default := kind.get("default"), bool):
        kind["default"] = str(default).lower()  # in the spelling of the command line
    return click.option(name, envvar=variable, show_envvar=True, show_default="default" in kind, help=meaning, **kind)


def an_address(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Return an address to listen at unchanged; raise click.BadParameter for a text that is no address."""
    if text is not None:
        try:
            parse_address(text)
        except GpushareError as error:
            raise click.BadParameter(str(error)) from error
    return text


def names_by_commas(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Return the names in a text, each once."""
    return tuple(dict.fromkeys(filter(None, (each.strip() for each in (text or "").split(",")))))


def is_written(name: str) -> bool:
    """Return whether a parameter of the command that runs is on the command line: no variable, and no default."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


probe_address_option = option(
    "--probe-address",
    "Address for /healthz, /readyz and /metrics over plain HTTP.",
    metavar="[HOST]:PORT",
    callback=an_address,
)
extender_namespace_option = option(
    "--extender-namespace",
    "Namespace of the scheduler extender.",
    metavar="NAMESPACE",
    default="kube-system",
)
partitioner_namespace_option = option(
    "--partitioner-namespace",
    "Namespace of the partitioner.",
    metavar="NAMESPACE",
    default="kube-system",
)
node_name_option = option(
    "--node-name",
    "Name of this Node.",
    metavar="NAME",
)
_KUBECONFIG = "Kubeconfig. Default: the service account of the pod; for people, ~/.kube/config."
kubeconfig_option = option(
    "--kubeconfig",
    _KUBECONFIG,
    metavar="FILE",
    type=A_PATH,
)


def person_kubeconfig(file: Path | None) -> Path | None:
    """Return the kubeconfig of the user, None for the service account of a pod; raise GpushareError without either."""
    if file is not None or os.environ.get("KUBERNETES_SERVICE_HOST"):
        return file
    usual = Path("~/.kube/config").expanduser()
    if usual.exists():
        return usual
    raise GpushareError(
        f"no kubeconfig: found neither --kubeconfig, KUBECONFIG nor {usual}; expected one of them, to know which "
        "cluster is meant"
    )


def _person_kubeconfig_option(**more: Any) -> Callable[[Command], Command]:
    return option("--kubeconfig", _KUBECONFIG, metavar="FILE", type=A_PATH, **more)


person_kubeconfig_option = _person_kubeconfig_option(callback=lambda _context, _option, file: person_kubeconfig(file))
perhaps_kubeconfig_option = _person_kubeconfig_option()
"""The option of a command that can do without a cluster: where the cluster is read, `person_kubeconfig` is called."""
context_option = click.option(
    "--context", metavar="NAME", help="Context of the kubeconfig. Default: the current context."
)
simulate_option = option("--simulate", "Simulate the GPUs of this YAML file.", metavar="FILE", type=A_PATH)
device_plugin_path_option = option(
    "--device-plugin-path",
    "Directory of the kubelet's plugin sockets, and of the daemon's own socket.",
    metavar="DIRECTORY",
    type=A_PATH,
    default=DEFAULT_PLUGIN_DIRECTORY,
)
driver_limits_agent_option = option(
    "--driver-limits-agent",
    "`gpushare driver-limits` sets driver limits on this node.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
driver_limits_root_option = option(
    "--driver-limits-root",
    "Directory in which `gpushare run` and `gpushare driver-limits` exchange limits.",
    metavar="DIRECTORY",
    type=A_PATH,
    default=Path("/run/gpushare/driver-limits"),
)
container_driver_root_option = option(
    "--container-driver-root",
    "Mount point of the host's driver root in this container.",
    metavar="DIRECTORY",
    type=A_PATH,
    default=Path("/driver-root"),
)

cgroup_root_option = option(
    "--cgroup-root",
    "Mount point of the host's cgroups (version 2), writable for `gpushare driver-limits`.",
    metavar="DIRECTORY",
    type=A_PATH,
    default=Path("/sys/fs/cgroup"),
)


def _directories(_context: click.Context, _option: click.Parameter, text: str) -> tuple[Path, ...]:
    paths = tuple(Path(word.strip()) for word in text.split(",") if word.strip())
    if relative := [path for path in paths if not path.is_absolute()]:
        raise click.BadParameter(f"found {relative[0]}, expected absolute paths")
    return paths


cdi_spec_dirs_option = option(
    "--cdi-spec-dirs",
    "Directories of CDI specifications, as in the container runtime; later directories win.",
    metavar="DIRECTORY,…",
    callback=_directories,
    default="/etc/cdi,/var/run/cdi",
)
pod_resources_socket_option = option(
    "--pod-resources-socket",
    "The kubelet's pod-resources socket.",
    metavar="SOCKET",
    type=A_PATH,
    default=DEFAULT_POD_RESOURCES_SOCKET,
)
log_format_option = option(
    "--log-format",
    "Log format.",
    type=click.Choice(["json", "console"]),
    default="json",
)
log_level_option = option(
    "--log-level",
    "Minimum log level.",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="info",
)
