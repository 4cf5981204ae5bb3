"""`gpushare mps`: the process that keeps the CUDA MPS control daemon of a node."""

from pathlib import Path

import click

from gpushare_plugin.adapters.host.compute_modes import ComputeModes, SimulatedComputeModes
from gpushare_plugin.adapters.host.mps.exchange import MpsRoot
from gpushare_plugin.cli.logs import daemon_log, run_daemon
from gpushare_plugin.cli.options import A_PATH, log_format_option, log_level_option, option, simulate_option
from gpushare_plugin.programs.mps.service import run

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where every program has it


@click.command("mps", short_help="Keep the CUDA MPS control daemon until SIGTERM.")
@option(
    "--mps-root",
    "Directory of what is wanted, of the pipes and the logs; at the same path on the host and in every container.",
    metavar="DIRECTORY",
    type=A_PATH,
    default=Path("/run/nvidia/mps"),
)
@option(
    "--container-driver-root",
    "Where the driver root of the host is mounted in this container.",
    metavar="DIRECTORY",
    type=A_PATH,
    default=Path("/driver-root"),
)
@simulate_option
@log_format_option
@log_level_option
def command(
    mps_root: Path, container_driver_root: Path, simulate: Path | None, log_format: str, log_level: str
) -> None:
    """Keep the CUDA MPS control daemon as `gpushare run` wants it until SIGTERM, then end it and its clients."""
    with daemon_log(log_format, log_level):
        modes = _modes(simulate, container_driver_root)
        run_daemon(run(MpsRoot(mps_root), modes, shm=None if simulate else _SHARED_MEMORY))


def _modes(simulate: Path | None, driver_root: Path) -> ComputeModes:
    if simulate is not None:
        return SimulatedComputeModes(simulate)
    from gpushare_plugin.adapters.host.nvml.compute_modes import NvmlComputeModes  # noqa: PLC0415 - a simulated node needs no pynvml

    return NvmlComputeModes(driver_root)
