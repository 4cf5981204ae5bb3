"""`gpushare driver-limits`: one process per node, which sets driver limits for containers until a signal ends it."""

import asyncio
from pathlib import Path

from gpushare_plugin.base.files.liveness import show_alive
from gpushare_plugin.base.signals.ending import until_stopped
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot
from gpushare_plugin.driver_limits.gpu import LimitsPace
from gpushare_plugin.driver_limits.reconciler import LimitsReconciler
from gpushare_plugin.gpus.exchange import take
from gpushare_plugin.gpus.memory_limits import MemoryLimits


async def run(root: DriverLimitsRoot, limits: MemoryLimits, cgroup_root: Path) -> None:
    """Carry out the orders in `wanted.json` of `root` until a signal; the limits of running containers then stay.

    `cgroup_root` is where the host's tree of cgroups is mounted. Raises AlreadyRunningError, and ExchangeError when the
    root cannot be used; in both cases no limit was touched.
    """
    await until_stopped(serve(root, limits, cgroup_root))


async def serve(
    root: DriverLimitsRoot, limits: MemoryLimits, cgroup_root: Path, pace: LimitsPace | None = None
) -> None:
    """Do the work of `run` until cancelled."""
    pace = pace or LimitsPace()
    with take(root, root.ready):
        reconciler = LimitsReconciler(root, limits, cgroup_root, pace)
        alive = asyncio.create_task(show_alive(root.alive, pace.ask), name="liveness")
        try:
            await reconciler.run()
        finally:
            alive.cancel()
            await asyncio.wait({alive})
            root.ready.unlink(missing_ok=True)
