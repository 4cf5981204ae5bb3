"""Common inputs of several commands: the configs, the options that choose a config, and the source of the GPUs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import click

from gpushare_plugin.cli.options import A_PATH, option
from gpushare_plugin.cli.setting_options import overrides
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.schema.names import CONTAINER_DRIVER_ROOT
from gpushare_plugin.config.sources.choice import Configs, Fallback
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.host import NO_FACTS, Host, HostFacts
from gpushare_plugin.gpus.source import GpuSource

Command = TypeVar("Command", bound=Callable[..., Any])


def _fallbacks(_context: click.Context, _option: click.Parameter, text: str) -> tuple[Fallback, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if unknown := [word for word in words if word not in get_args(Fallback)]:
        raise click.BadParameter(f"found {', '.join(unknown)}; allowed: {', '.join(get_args(Fallback))}")
    return cast("tuple[Fallback, ...]", words)


_config_file_option = option(
    "--config-file",
    "Config file. Default: every GPU by memory, in GiB, as aliyun.com/gpu-mem.",
    metavar="FILE",
    type=A_PATH,
)
_config_directory_option = option(
    "--config-directory",
    "Directory of named configs; the node label nvidia.com/device-plugin.config chooses.",
    metavar="DIRECTORY",
    type=A_PATH,
)
_default_config_option = option(
    "--default-config", "Config of --config-directory without a node label.", metavar="NAME"
)
_fallback_strategies_option = option(
    "--fallback-strategies",
    "Without node label and default, in order: the config named default (named), the only config (single), no config "
    "file (empty).",
    metavar="[named|single|empty],…",
    callback=_fallbacks,
    default="named,single",
)


def with_config_options(command: Command) -> Command:
    """Add the options that choose the config to a click command; see `chosen_configs`."""
    for each in (_fallback_strategies_option, _default_config_option, _config_directory_option, _config_file_option):
        command = each(command)
    return command


def chosen_configs(context: click.Context, options: dict[str, Any]) -> Configs:
    """Return the configs chosen by the options of `with_config_options` and `with_setting_options`."""
    if options["config_file"] is not None and options["config_directory"] is not None:
        raise click.UsageError("found both --config-file and --config-directory; expected one of them")
    return Configs(
        overrides=overrides(context),
        file=options["config_file"],
        directory=options["config_directory"],
        default=options["default_config"] or None,
        fallbacks=options["fallback_strategies"],
    )


def driver_root(given: str | None, loaded: Loaded) -> Path:
    """Return the directory to search for NVML's library: the config's or, for a config with mistakes, `given`.

    `given` is the value of the option or of the environment; a config without mistakes has taken the value over.
    """
    root = loaded.config.flags.plugin.container_driver_root if loaded.config else given
    return Path(root or CONTAINER_DRIVER_ROOT)


def gpu_source(simulate: Path | None, given_root: str | None, loaded: Loaded) -> GpuSource:
    """Return the source of the simulated GPUs in the file `simulate` or, for None, of the GPUs that NVML finds.

    `loaded` and `given_root` choose the driver root, see `driver_root`.
    """
    if simulate is not None:
        from gpushare_plugin.gpus.simulated import SimulatedSource  # noqa: PLC0415 - only for simulated GPUs

        return SimulatedSource(simulate)
    from gpushare_plugin.gpus.nvml.gpus import NvmlSource  # noqa: PLC0415 - a simulated node needs no pynvml

    return NvmlSource(driver_root(given_root, loaded))


class HostLook:
    """Looks at what a node has beside its GPUs, or would have while the daemon runs."""

    def __init__(self, options: dict[str, Any], inventory: Inventory) -> None:
        """Look where the options say, for these GPUs."""
        self._host = Host(
            () if options["simulate"] else options["cdi_spec_dirs"],
            cgroup_root=options["cgroup_root"],
            limits_agent=options["driver_limits_agent"],
        )
        self._inventory = inventory

    def facts(self, loaded: Loaded) -> HostFacts:
        """Return what the config needs to know of the host; nothing for a config with mistakes."""
        return NO_FACTS if loaded.config is None else self._host.preview(self._inventory, loaded.config)
