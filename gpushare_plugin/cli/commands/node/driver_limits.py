"""`gpushare driver-limits`: the process that sets driver limits for the containers of a node."""

from pathlib import Path
from typing import Any

import click

from gpushare_plugin.cli.daemons import daemon_log, run_daemon
from gpushare_plugin.cli.options import (
    cgroup_root_option,
    container_driver_root_option,
    driver_limits_root_option,
    log_format_option,
    log_level_option,
)
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot
from gpushare_plugin.driver_limits.service import run
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits


@click.command("driver-limits", short_help="Set driver limits for containers until SIGTERM.")
@driver_limits_root_option
@cgroup_root_option
@container_driver_root_option
@log_format_option
@log_level_option
def command(driver_limits_root: Path, cgroup_root: Path, container_driver_root: Path, **options: Any) -> None:
    """Set limits of GPU memory for containers as `gpushare run` wants; NVIDIA's driver from 615 on enforces them."""
    with daemon_log(options["log_format"], options["log_level"]) as log:
        limits = NvmlMemoryLimits(container_driver_root)
        run_daemon(run(DriverLimitsRoot(driver_limits_root), limits, cgroup_root), log)
