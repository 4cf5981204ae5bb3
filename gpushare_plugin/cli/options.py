"""Options that several commands have; those that stand for a setting of the config file are in `setting_options`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import click

from gpushare_plugin.adapters.kubelet.paths import DEFAULT_POD_RESOURCES_SOCKET
from gpushare_plugin.config.sources.choice import Fallback

Command = TypeVar("Command", bound=Callable[..., Any])

LOG_LEVELS = ("debug", "info", "warning", "error")

A_PATH = click.Path(path_type=Path)


def option(name: str, meaning: str, **kind: Any) -> Callable[[Command], Command]:
    """Return a click option whose environment twin has the same name in capitals."""
    variable = name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, envvar=variable, show_envvar=True, show_default="default" in kind, help=meaning, **kind)


def _fallbacks(_context: click.Context, _option: click.Parameter, text: str) -> tuple[Fallback, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if unknown := [word for word in words if word not in get_args(Fallback)]:
        raise click.BadParameter(f"found {', '.join(unknown)}; allowed: {', '.join(get_args(Fallback))}")
    return cast("tuple[Fallback, ...]", words)


_config_file_option = option(
    "--config-file",
    "Config file; without one, every GPU is shared by memory in GiB as aliyun.com/gpu-mem.",
    metavar="FILE",
    type=A_PATH,
)
_config_directory_option = option(
    "--config-directory",
    "Directory of named configs, one a file, instead of --config-file; the node label nvidia.com/device-plugin.config "
    "chooses one.",
    metavar="DIRECTORY",
    type=A_PATH,
)
_default_config_option = option(
    "--default-config", "Config of --config-directory that holds where no label chooses one.", metavar="NAME"
)
_fallback_strategies_option = option(
    "--fallback-strategies",
    "What to try, in turn, where no label chooses and there is no default: the config called default (named), the only "
    "one there is (single), no config file at all (empty).",
    metavar="[named|single|empty],…",
    callback=_fallbacks,
    default="named,single",
)


def with_config_options(command: Command) -> Command:
    """Add the options that say where the settings come from to a click command; see `inputs.chosen_configs`."""
    for each in (_fallback_strategies_option, _default_config_option, _config_directory_option, _config_file_option):
        command = each(command)
    return command


node_name_option = option(
    "--node-name",
    "Name of this Node; where it is given and there is an API server, its labels are followed and written.",
    metavar="NAME",
)
kubeconfig_option = option(
    "--kubeconfig",
    "Where the API server is and who this is; not given, a pod uses its service account.",
    metavar="FILE",
    type=A_PATH,
)
simulate_option = option(
    "--simulate", "Take the GPUs from this YAML file instead of NVML.", metavar="FILE", type=A_PATH
)
pod_resources_socket_option = option(
    "--pod-resources-socket",
    "Where the kubelet tells which pods hold which units.",
    metavar="SOCKET",
    type=A_PATH,
    default=DEFAULT_POD_RESOURCES_SOCKET,
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
