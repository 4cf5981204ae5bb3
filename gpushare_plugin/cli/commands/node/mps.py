"""`gpushare mps`: the process that supervises the CUDA MPS control daemon of a node."""

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
    simulate_option,
)
from gpushare_plugin.config.schema.values import MemoryUnit
from gpushare_plugin.gpus.compute_modes import ComputeModes, SimulatedComputeModes
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.mps.service import run

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the same path for every program


@click.command("mps", short_help="Run the CUDA MPS control daemon until SIGTERM.")
@option(
    "--mps-root",
    "Directory of settings, pipes and logs; the same path on the host and in containers.",
    metavar="DIRECTORY",
    type=A_PATH,
    callback=lambda _context, _option, path: _absolute(path),
    default=Path("/run/nvidia/mps"),
)
@option(
    "--shared-memory",
    "Size of the tmpfs that containers under MPS share as /dev/shm, such as 1GiB. Default: no limit.",
    metavar="SIZE",
    callback=lambda _context, _option, text: None if text is None else _memory(text),
)
@container_driver_root_option
@option(
    "--replace-silent",
    "Replace an unresponsive MPS control daemon with servers; this ends their programs.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@simulate_option
@log_format_option
@log_level_option
def command(mps_root: Path, container_driver_root: Path, **options: Any) -> None:
    """Run the CUDA MPS control daemon as `gpushare run` wants; on SIGTERM, end the control daemon and its clients."""
    with daemon_log(options["log_format"], options["log_level"]) as log:
        modes = _modes(options["simulate"], container_driver_root)
        shm = None if options["simulate"] else _SHARED_MEMORY
        root, silent = MpsRoot(mps_root), options["replace_silent"]
        run_daemon(run(root, modes, shm=shm, shared_memory=options["shared_memory"], replace_silent=silent), log)


def _memory(text: str) -> MemoryUnit:
    try:
        return MemoryUnit.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _modes(simulate: Path | None, driver_root: Path) -> ComputeModes:
    if simulate is not None:
        return SimulatedComputeModes(simulate)
    from gpushare_plugin.gpus.nvml.compute_modes import NvmlComputeModes  # noqa: PLC0415 - a simulated node needs no pynvml

    return NvmlComputeModes(driver_root)


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise click.BadParameter(f"found {path}; expected an absolute path, as it is on the host")
    return path
