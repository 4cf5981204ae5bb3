"""`gpushare mig`: the process that makes and destroys MIG instances of a node."""

from pathlib import Path
from typing import Any

import click

from gpushare_plugin.cli.daemons import daemon_log, run_daemon
from gpushare_plugin.cli.options import (
    A_PATH,
    container_driver_root_option,
    log_format_option,
    log_level_option,
    option,
)
from gpushare_plugin.gpus.nvml.partitions import NvmlPartitions
from gpushare_plugin.mig.exchange import DEFAULT_ROOT, MigRoot
from gpushare_plugin.mig.service import run


@click.command("mig", short_help="Make and destroy MIG instances until SIGTERM.")
@option(
    "--mig-root",
    "Directory in which `gpushare run` and `gpushare mig` exchange files.",
    metavar="DIRECTORY",
    type=A_PATH,
    default=DEFAULT_ROOT,
)
@container_driver_root_option
@log_format_option
@log_level_option
def command(mig_root: Path, container_driver_root: Path, **options: Any) -> None:
    """Make and destroy MIG instances as `gpushare run` wants; instances in use stay."""
    with daemon_log(options["log_format"], options["log_level"]) as log:
        run_daemon(run(MigRoot(mig_root), NvmlPartitions(container_driver_root)), log)
