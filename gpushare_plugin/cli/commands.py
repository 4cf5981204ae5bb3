"""The `gpushare` command: subcommands and options; the only place that ends the process."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

# gRPC prints its own lines, in its own format, beside our log; our log tells the same.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click
import structlog

from gpushare_plugin import __version__
from gpushare_plugin.adapters.cluster.settings import Labels, settled
from gpushare_plugin.adapters.host.compute_modes import ComputeModes
from gpushare_plugin.adapters.host.source import GpuSource
from gpushare_plugin.adapters.kubelet.allocations.ledger import PodName
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import DEFAULT_SOCKET
from gpushare_plugin.cli.setting_options import overrides, with_setting_options
from gpushare_plugin.config.difference import difference
from gpushare_plugin.config.loading.load import Loaded, dump, load
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.config.sources.choice import Configs, Fallback
from gpushare_plugin.foundation.errors import ConfigError, GpushareError, NoGpuLibraryError
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.programs.node import daemon as app
from gpushare_plugin.programs.node.node import decide
from gpushare_plugin.sharing.plan import Plan

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Where a pod that may talk to the API server finds its token."""

_PIPE_WIDTH = 200
"""Columns of a table that no terminal shows: wide enough for grep to find a whole row on one line."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where every program has it

LOG_LEVELS = ("debug", "info", "warning", "error")

Command = TypeVar("Command", bound=Callable[..., Any])


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage."""
    try:
        commands(prog_name="gpushare")
    except ConfigError as error:
        click.echo("gpushare: these settings cannot be used:", err=True)
        for line in error.lines:
            click.echo(f"  {line}", err=True)
        sys.exit(1)
    except GpushareError as error:
        click.echo(f"gpushare: {error}", err=True)
        sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def commands() -> None:
    """Share the GPUs of a Kubernetes node: by memory, by time slices, or whole."""


def option(name: str, meaning: str, **kind: Any) -> Callable[[Command], Command]:
    """Return a click option whose environment twin has the same name in capitals."""
    variable = name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, envvar=variable, show_envvar=True, show_default="default" in kind, help=meaning, **kind)


_A_PATH = click.Path(path_type=Path)

config_file_option = option(
    "--config-file",
    "Config file; without one, every GPU is shared by memory in GiB as aliyun.com/gpu-mem.",
    metavar="FILE",
    type=_A_PATH,
)
config_directory_option = option(
    "--config-directory",
    "Directory of named configs, one a file, instead of --config-file; the node label nvidia.com/device-plugin.config "
    "chooses one.",
    metavar="DIRECTORY",
    type=_A_PATH,
)
default_config_option = option(
    "--default-config", "Config of --config-directory that holds where no label chooses one.", metavar="NAME"
)
fallback_strategies_option = option(
    "--fallback-strategies",
    "What to try, in turn, where no label chooses and there is no default: the config called default (named), the only "
    "one there is (single), no config file at all (empty).",
    metavar="[named|single|empty],…",
    callback=lambda _context, _option, value: _fallbacks(value),
    default="named,single",
)
node_name_option = option(
    "--node-name",
    "Name of this Node; where it is given and there is an API server, its labels are followed and written.",
    metavar="NAME",
)
kubeconfig_option = option(
    "--kubeconfig",
    "Where the API server is and who this is; not given, a pod uses its service account.",
    metavar="FILE",
    type=_A_PATH,
)
node_labels_option = option(
    "--node-labels",
    "Write the node labels of NVIDIA's GPU feature discovery; false where that runs.",
    metavar="[true|false]",
    type=click.BOOL,
    default=True,
)
simulate_option = option(
    "--simulate", "Take the GPUs from this YAML file instead of NVML.", metavar="FILE", type=_A_PATH
)
device_plugin_path_option = option(
    "--device-plugin-path",
    "Directory of the kubelet's plugin sockets.",
    metavar="DIRECTORY",
    type=_A_PATH,
    default=app.DEFAULT_PLUGIN_DIRECTORY,
)
pod_resources_socket_option = option(
    "--pod-resources-socket",
    "Where the kubelet tells which pods hold which units.",
    metavar="SOCKET",
    type=_A_PATH,
    default=DEFAULT_SOCKET,
)
http_address_option = option(
    "--http-address",
    "Where to answer /healthz, /readyz and /metrics, such as :8080; not given, nowhere.",
    metavar="HOST:PORT",
)
pod_namespace_option = option(
    "--pod-namespace", "Namespace of the pod this runs in; see --pod-name.", metavar="NAMESPACE"
)
pod_name_option = option(
    "--pod-name",
    "Pod this runs in: a kubelet that shows it knows its pods, and is believed sooner that nobody holds a unit.",
    metavar="NAME",
)
log_format_option = option(
    "--log-format",
    "One JSON object a line, or text for people.",
    type=click.Choice(["json", "console"]),
    default="json",
)
log_level_option = option(
    "--log-level",
    "The least grave events to log.",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="info",
)


@commands.command()
@config_file_option
@config_directory_option
@default_config_option
@fallback_strategies_option
@simulate_option
@with_setting_options
@device_plugin_path_option
@pod_resources_socket_option
@http_address_option
@pod_namespace_option
@pod_name_option
@node_name_option
@kubeconfig_option
@node_labels_option
@log_format_option
@log_level_option
@click.pass_context
def run(context: click.Context, /, **options: Any) -> None:
    """Serve this node's GPUs to the kubelet until SIGTERM."""
    _configure_log(options["log_format"], options["log_level"])
    log = structlog.get_logger()
    log.info("starting", version=__version__)
    try:
        daemon = app.Daemon(
            configs=_configs(context, options),
            source=partial(_source, options["simulate"]),
            directory=options["device_plugin_path"],
            pod_resources=options["pod_resources_socket"],
            http_address=_checked(options["http_address"]),
            own_pod=_own_pod(options["pod_namespace"], options["pod_name"]),
            membership=_membership(options["node_name"], options["kubeconfig"], node_labels=options["node_labels"]),
        )
        asyncio.run(app.run(daemon))
    except GpushareError as error:
        for line in str(error).splitlines():
            log.error("cannot start", reason=line)  # noqa: TRY400 - a mistake in the settings needs no stack
        sys.exit(1)
    log.info("stopped")


@commands.command("check-config", short_help="Check a config FILE and print what it comes to.")
@click.argument("file", type=_A_PATH)
@simulate_option
@click.option(
    "--against",
    metavar="OLD",
    type=_A_PATH,
    help="Print only what FILE changes of the settings in this file, and of what they advertise.",
)
@with_setting_options
@click.pass_context
def check_config(
    context: click.Context, /, file: Path, simulate: Path | None, against: Path | None, **_settings: Any
) -> None:
    """Check a config FILE and print the effective settings and, where GPUs can be seen, what would be advertised."""
    _configure_log("console", "error")
    loaded = load(file, overrides(context))
    inventory, unseen = None, ""
    try:
        inventory = asyncio.run(app.look(_source(simulate, loaded)))
    except NoGpuLibraryError as error:
        unseen = f"# Only the file itself was checked, for no GPU can be seen here: {error}"
    config, decided = _checked_settings(loaded, inventory)
    if against is None:
        click.echo(dump(config), nl=False)
        if inventory is not None and decided is not None:
            click.echo(f"# With the {len(inventory.gpus)} GPUs of this node would be advertised:")
            for resource in decided.resources:
                on = ", ".join(gpu.label for gpu in resource.gpus.values())
                click.echo(f"#   {resource.name}: {len(resource.units)} on GPU {on}")
    else:
        old_config, old = _checked_settings(load(against, overrides(context)), inventory)
        _print_changes("settings", difference(old_config, config))
        if old is not None and decided is not None:
            _print_changes("units advertised on this node", list(_unit_changes(old, decided)))
    if decided is None:
        click.echo(unseen, err=True)
    for notice in (*loaded.notices, *(decided.notices if decided else ())):
        click.echo(f"# Note: {notice}", err=True)


def _checked_settings(loaded: Loaded, inventory: Inventory | None) -> tuple[Config, Plan | None]:
    """Return settings and, where there are GPUs, what they mean; raises ConfigError with all that is wrong."""
    decided = decide(loaded, inventory) if inventory is not None else None
    if loaded.config is None or loaded.problems:
        raise ConfigError(loaded.lines(loaded.problems))
    return loaded.config, decided


def _print_changes(what: str, lines: list[str]) -> None:
    click.echo(f"# Changes of {what}:" if lines else f"# No change of {what}.")
    for line in lines:
        click.echo(line)


def _unit_changes(old: Plan, new: Plan) -> Iterator[str]:
    before, after = ({each.name: len(each.units) for each in decided.resources} for decided in (old, new))
    for name in before | after:
        match before.get(name), after.get(name):
            case None, now:
                yield f"{name}: added, {now}"
            case was, None:
                yield f"{name}: gone, was {was}"
            case was, now if was != now:
                yield f"{name}: {was} -> {now}"


@commands.command("list")
@config_file_option
@config_directory_option
@default_config_option
@fallback_strategies_option
@node_name_option
@kubeconfig_option
@simulate_option
@with_setting_options
@pod_resources_socket_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print.")
@click.pass_context
def list_(context: click.Context, /, pod_resources_socket: Path, output: str, **options: Any) -> None:
    """List this node's GPUs, what they are advertised as and, where the kubelet can be asked, who holds what."""
    from rich.console import Console  # noqa: PLC0415 - the daemon does without

    from gpushare_plugin.adapters.kubelet.allocations.pod_resources import PodResourcesError, list_pods  # noqa: PLC0415
    from gpushare_plugin.inspect.report import as_data, gpu_table, report, use_table  # noqa: PLC0415

    _configure_log("console", "error")
    labels = asyncio.run(_labels(_membership(options["node_name"], options["kubeconfig"], node_labels=False)))
    loaded = settled(labels, _configs(context, options), starting=True)
    inventory = asyncio.run(app.look(_source(options["simulate"], loaded)))
    decided = decide(loaded, inventory)
    holdings = None
    try:
        holdings = asyncio.run(list_pods(pod_resources_socket)).holdings
    except PodResourcesError as error:
        click.echo(f"gpushare: who holds what is not known: {error}", err=True)
    node = report(inventory, decided.resources, holdings)
    if output == "json":
        click.echo(json.dumps(as_data(node), indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(gpu_table(node))
    if any(gpu.uses for gpu in node.gpus):
        console.print()
        console.print(use_table(node))


@commands.command(short_help="Remove what this daemon wrote on Nodes.")
@node_name_option
@kubeconfig_option
def cleanup(node_name: str | None, kubeconfig: Path | None) -> None:
    """Remove every label, annotation and capacity that this daemon wrote, from one Node, or from all without a name."""
    from gpushare_plugin.adapters.cluster.client import Client  # noqa: PLC0415 - only where it is asked for
    from gpushare_plugin.adapters.cluster.member import clean  # noqa: PLC0415 - as above

    async def cleaned() -> list[str]:
        failed = []
        async with Client(kubeconfig) as client:
            async for name, error in clean(client, node_name):
                click.echo(f"{name}: {error or 'cleaned'}", err=error is not None)
                failed += [name] if error else []
        return failed

    _configure_log("console", "error")
    if failed := asyncio.run(cleaned()):
        raise GpushareError(f"{len(failed)} nodes are not clean yet: {', '.join(failed)}; run this again")


@commands.command()
@option(
    "--mps-root",
    "Directory of what is wanted, of the pipes and the logs; at the same path on the host and in every container.",
    metavar="DIRECTORY",
    type=_A_PATH,
    default=Path("/run/nvidia/mps"),
)
@option(
    "--container-driver-root",
    "Where the driver root of the host is mounted in this container.",
    metavar="DIRECTORY",
    type=_A_PATH,
    default=Path("/driver-root"),
)
@simulate_option
@log_format_option
@log_level_option
def mps(mps_root: Path, container_driver_root: Path, simulate: Path | None, log_format: str, log_level: str) -> None:
    """Keep the CUDA MPS control daemon as `gpushare run` wants it until SIGTERM, then end it and its clients."""
    from gpushare_plugin.adapters.host.mps.exchange import MpsRoot  # noqa: PLC0415 - only where it is asked for
    from gpushare_plugin.programs.mps.service import run as keep  # noqa: PLC0415 - only where it is asked for

    _configure_log(log_format, log_level)
    log = structlog.get_logger()
    log.info("starting", version=__version__)
    try:
        modes = _modes(simulate, container_driver_root)
        asyncio.run(keep(MpsRoot(mps_root), modes, shm=None if simulate else _SHARED_MEMORY))
    except GpushareError as error:
        log.error("cannot start", reason=str(error))  # noqa: TRY400 - the reason says all
        sys.exit(1)
    log.info("stopped")


@commands.command()
def demo() -> None:
    """Share four simulated GPUs among sample pods, with an embedded kubelet, and show what each pod got."""
    from gpushare_plugin.cli.demonstration import show  # noqa: PLC0415 - the daemon does without the test kit

    _configure_log("console", "error")
    asyncio.run(show())


@commands.command()
def version() -> None:
    """Print the version."""
    click.echo(f"gpushare {__version__}")


def _checked(address: str | None) -> str | None:
    if address is not None:
        from gpushare_plugin.telemetry.http import parse_address  # noqa: PLC0415 - only where it is asked for

        parse_address(address)
    return address


def _configs(context: click.Context, options: dict[str, Any]) -> Configs:
    if options["config_file"] is not None and options["config_directory"] is not None:
        raise click.UsageError("found both --config-file and --config-directory; expected one of them")
    return Configs(
        overrides=overrides(context),
        file=options["config_file"],
        directory=options["config_directory"],
        default=options["default_config"] or None,
        fallbacks=options["fallback_strategies"],
    )


def _fallbacks(text: str) -> tuple[Fallback, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if unknown := [word for word in words if word not in get_args(Fallback)]:
        raise click.BadParameter(f"found {', '.join(unknown)}; allowed: {', '.join(get_args(Fallback))}")
    return cast("tuple[Fallback, ...]", words)


def _membership(node_name: str | None, kubeconfig: Path | None, *, node_labels: bool) -> app.Membership | None:
    """Return how to take part in a cluster, None where the Node's name or the API server is not known."""
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and SERVICE_ACCOUNT_TOKEN.exists()
    if not node_name or not (kubeconfig or in_pod):
        structlog.get_logger().info("no API server is talked to", node_name=node_name, kubeconfig=None, pod=in_pod)
        return None
    return app.Membership(node_name, kubeconfig, node_labels)


async def _labels(membership: app.Membership | None) -> Labels:
    """Return the labels of this Node, none where it cannot be asked for them."""
    if membership is None:
        return {}
    from gpushare_plugin.adapters.cluster.client import NODES, Client, ClusterError  # noqa: PLC0415 - only where it is asked for

    try:
        async with Client(membership.kubeconfig) as client:
            nodes, _ = await client.list(NODES, membership.node_name)
    except ClusterError as error:
        click.echo(f"gpushare: which config the Node's labels ask for is not known: {error}", err=True)
        return {}
    return {key: value for node in nodes for key, value in node["metadata"].get("labels", {}).items()}


def _own_pod(namespace: str | None, name: str | None) -> PodName | None:
    return (namespace, name) if namespace and name else None


def _source(simulate: Path | None, loaded: Loaded) -> GpuSource:
    if simulate is not None:
        from gpushare_plugin.adapters.host.simulated import SimulatedSource  # noqa: PLC0415 - only where it is asked for

        return SimulatedSource(simulate)
    from gpushare_plugin.adapters.host.nvml.gpus import NvmlSource  # noqa: PLC0415 - a simulated node needs no pynvml

    root = loaded.config.flags.plugin.container_driver_root if loaded.config else "/"
    return NvmlSource(Path(root))


def _modes(simulate: Path | None, driver_root: Path) -> ComputeModes:
    if simulate is not None:
        from gpushare_plugin.adapters.host.compute_modes import SimulatedComputeModes  # noqa: PLC0415 - only where it is asked for

        return SimulatedComputeModes(simulate)
    from gpushare_plugin.adapters.host.nvml.compute_modes import NvmlComputeModes  # noqa: PLC0415 - a simulated node needs no pynvml

    return NvmlComputeModes(driver_root)


def _configure_log(form: str, level: str) -> None:
    renderer: Any = structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.dict_tracebacks] if form == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
