"""`gpushare mig`: one process a node that makes and destroys MIG instances until a signal ends it."""

import asyncio

from gpushare_plugin.adapters.host.exchange import ExchangeError, take
from gpushare_plugin.adapters.host.mig.driver import MigDriver
from gpushare_plugin.adapters.host.mig.exchange import MigRoot
from gpushare_plugin.foundation.files.liveness import show_alive
from gpushare_plugin.foundation.signals.ending import until_stopped
from gpushare_plugin.programs.mig.reconciler import MigPace, Reconciler


async def run(root: MigRoot, driver: MigDriver) -> None:
    """Do what `wanted.json` in `root` says, until a signal ends it; instances stay as they are then.

    Raises AlreadyRunningError, and ExchangeError when the root cannot be used; then nothing was touched. Raises
    DriverChangedError where only a new process can go on.
    """
    await until_stopped(serve(root, driver))


async def serve(root: MigRoot, driver: MigDriver, pace: MigPace | None = None) -> None:
    """Do what `run` does, until cancelled."""
    pace = pace or MigPace()
    with take(root, root.lock, "gpushare mig", "MIG root"):
        try:
            for file in (root.status, root.ready):
                file.unlink(missing_ok=True)  # what an earlier run read may have changed
            root.path.chmod(0o755)
        except OSError as error:
            raise ExchangeError(f"the MIG root {root.path} cannot be used: {error}") from error
        reconciler = Reconciler(root, driver, pace)
        alive = asyncio.create_task(show_alive(root.alive, pace.ask), name="liveness")
        try:
            await reconciler.run()
        finally:
            alive.cancel()
            await asyncio.wait({alive})
            reconciler.stop()
