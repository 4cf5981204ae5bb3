"""`gpushare mig`: one process per node, which creates and destroys MIG instances until a signal ends the process."""

import asyncio

from gpushare_plugin.base.files.liveness import show_alive
from gpushare_plugin.base.signals.ending import until_stopped
from gpushare_plugin.gpus.exchange import take
from gpushare_plugin.gpus.mig_driver import MigDriver
from gpushare_plugin.mig.exchange import MigRoot
from gpushare_plugin.mig.reconciler import MigPace, Reconciler


async def run(root: MigRoot, driver: MigDriver) -> None:
    """Carry out the orders in `wanted.json` of `root` until a signal; the instances then stay unchanged.

    Raises AlreadyRunningError, and ExchangeError when the root cannot be used; in both cases no card was touched.
    Raises DriverChangedError where only a new process can continue.
    """
    await until_stopped(serve(root, driver))


async def serve(root: MigRoot, driver: MigDriver, pace: MigPace | None = None) -> None:
    """Do the work of `run` until cancelled."""
    pace = pace or MigPace()
    with take(root, root.status, root.ready):  # the status of an earlier run may be outdated
        reconciler = Reconciler(root, driver, pace)
        alive = asyncio.create_task(show_alive(root.alive, pace.ask), name="liveness")
        try:
            await reconciler.run()
        finally:
            alive.cancel()
            await asyncio.wait({alive})
            reconciler.stop()
