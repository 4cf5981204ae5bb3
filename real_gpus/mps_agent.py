"""`gpushare mps` that leaves the compute modes of the GPUs as they are: `python -m real_gpus.mps_agent ROOT`."""

import sys
from pathlib import Path

from gpushare_plugin.cli.daemons import daemon_log, run_daemon
from gpushare_plugin.gpus.compute_modes import ComputeMode
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.mps.service import run


class UnchangedModes:
    """Compute modes that are never set; `gpushare mps` would make the GPUs exclusive to the MPS server."""

    def read(self, uuid: str) -> ComputeMode:  # noqa: ARG002 - as ComputeModes has it
        """Say that the GPU is exclusive, so that nothing is to be set."""
        return ComputeMode.EXCLUSIVE_PROCESS

    def set(self, uuid: str, mode: ComputeMode) -> None:
        """Set nothing."""


def main(root: Path) -> None:
    """Run until SIGTERM."""
    with daemon_log("json", "debug") as log:
        run_daemon(run(MpsRoot(root), UnchangedModes(), shm=Path("/dev/shm")), log)  # noqa: S108 - the path of MPS


if __name__ == "__main__":
    main(Path(sys.argv[1]))
