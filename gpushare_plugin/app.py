"""The daemon put together: settings and GPUs make resources, each resource gets a session, signals end it all."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from gpushare_plugin.config.load import Loaded
from gpushare_plugin.errors import ConfigError, NoGpuLibraryError
from gpushare_plugin.host.source import GpuSource, read_inventory
from gpushare_plugin.kubelet.directory import PluginDirectory
from gpushare_plugin.kubelet.session import Session
from gpushare_plugin.model.backoff import Backoff
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.sharing.injection import CONTROL_DEVICES
from gpushare_plugin.sharing.plan import Plan, plan

_log = structlog.get_logger()

DEFAULT_PLUGIN_DIRECTORY = Path("/var/lib/kubelet/device-plugins")


async def run(loaded: Loaded, source: GpuSource, directory: Path) -> None:
    """Serve this node's GPUs until SIGTERM or SIGINT; raises as `serve` does."""
    serving = asyncio.current_task()
    assert serving is not None  # noqa: S101 - a coroutine runs in a task
    loop = asyncio.get_running_loop()
    stopping = False

    def stop(number: signal.Signals) -> None:
        nonlocal stopping
        stopping = True
        _log.info("stopping", signal=number.name)
        serving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await serve(loaded, source, directory)
    except asyncio.CancelledError:
        if not stopping:
            raise


async def serve(loaded: Loaded, source: GpuSource, directory: Path) -> None:
    """Serve this node's GPUs until cancelled.

    Raises ConfigError when the settings cannot be used, and NoGpuLibraryError when there is no GPU and
    `failOnInitError` is set; both before anything is registered.
    """
    # Settings that are wrong anyway are not worth waiting for: look once, to report every problem together.
    patient = loaded.config is not None and not loaded.problems and not loaded.config.flags.fail_on_init_error
    try:
        inventory = await _find_gpus(source, patient=patient)
    except NoGpuLibraryError:
        if loaded.problems:
            raise ConfigError(loaded.lines(loaded.problems)) from None
        raise
    decided = decide(loaded, inventory)
    for notice in (*loaded.notices, *decided.notices):
        _log.warning("notice", notice=notice)
    await _serve_resources(decided.resources, PluginDirectory(directory))


def decide(loaded: Loaded, inventory: Inventory) -> Plan:
    """Return what the node advertises; raises ConfigError with every problem of settings and GPUs together."""
    if loaded.config is None:
        raise ConfigError(loaded.lines(loaded.problems))
    present = tuple(path for path in CONTROL_DEVICES if Path(path).exists())
    decided = plan(loaded.config, inventory, present, loaded.places.describe)
    if problems := (*loaded.problems, *decided.problems):
        raise ConfigError(loaded.lines(problems))
    return decided


async def _find_gpus(source: GpuSource, *, patient: bool) -> Inventory:
    """Read the GPUs; when there is none, wait and look again for as long as it takes if `patient`."""
    backoff = Backoff(first=1.0, most=30.0)
    while True:
        try:
            return await look(source)
        except NoGpuLibraryError as error:
            if not patient:
                raise
            wait = backoff.next()
            _log.warning("no GPU yet, looking again", reason=str(error), wait_seconds=wait)
            await asyncio.sleep(wait)


async def look(source: GpuSource) -> Inventory:
    """Read the GPUs once; raises NoGpuLibraryError when none answers."""
    inventory = await read_inventory(source)
    for card in inventory.failed:
        _log.error("GPU left out: it does not answer", index=card.index, uuid=card.uuid, reason=card.reason)
    if not inventory.gpus:
        raise NoGpuLibraryError(
            f"no usable GPU on this node: {len(inventory.failed)} found that do not answer, at least one that does "
            "expected; see nvidia-smi, or keep this daemon off nodes without GPUs"
        )
    _log_gpus(inventory)
    return inventory


def _log_gpus(inventory: Inventory) -> None:
    _log.info("node", driver=inventory.driver_version, cuda=".".join(map(str, inventory.cuda_version)))
    for gpu in inventory.gpus:
        _log.info(
            "gpu",
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            memory_mib=gpu.memory_mib,
            numa_node=gpu.numa_node,
            pci_bus_id=gpu.pci_bus_id,
            mig=gpu.mig_enabled,
        )


async def _serve_resources(resources: Sequence[Resource], directory: PluginDirectory) -> None:
    sessions = [Session(resource, directory) for resource in resources]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_guarded("plugin-directory", directory.watch))
        for session in sessions:
            tasks.create_task(_guarded(f"session {session.resource.name}", session.run))


async def _guarded(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, which never ends by itself, under a name; if it breaks, say so loudly and start it again."""
    backoff = Backoff(first=1.0, most=60.0)
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - one broken task must not take the others down
            wait = backoff.next()
            _log.exception("a task broke; this is a defect of gpushare, please report it", task=name, wait_seconds=wait)
            await asyncio.sleep(wait)
