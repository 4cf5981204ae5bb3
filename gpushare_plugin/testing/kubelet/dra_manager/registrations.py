"""The sockets in the registry directory, and the plugins behind them (kubernetes: pkg/kubelet/pluginmanager)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpushare_plugin.kubelet.api.pluginregistration_pb2 import InfoRequest, PluginInfo, RegistrationStatus
from gpushare_plugin.kubelet.api.pluginregistration_pb2_grpc import RegistrationStub
from gpushare_plugin.testing.clock import Clock, within
from gpushare_plugin.testing.kubelet.dra_manager.drivers import Drivers
from gpushare_plugin.testing.kubelet.shared.calling import OWN_CONNECTION, answered
from gpushare_plugin.testing.kubelet.shared.errors import DraError, PluginCallError
from gpushare_plugin.testing.kubelet.shared.journal import DriverRegistration, Journal

LOOP_SECONDS = 1.0
"""kubernetes: plugin_manager.go, loopSleepDuration."""
DIAL_SECONDS, INFO_SECONDS, NOTIFY_SECONDS = 10.0, 1.0, 5.0
"""kubernetes: operationexecutor/operation_generator.go."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 122.0
"""Seconds without another try after a failure (kubernetes: util/goroutinemap/exponentialbackoff)."""

TYPE = "DRAPlugin"

Identity = tuple[int, int]
"""Inode and time of a socket: a socket that was made anew has another one."""


@dataclass(slots=True)
class Failed:
    """The last failure with a socket: when it was, and for how long nothing is tried then."""

    at: float
    wait: float = FIRST_WAIT


@dataclass(frozen=True, slots=True)
class Registered:
    """A plugin that registered, by the socket of this identity."""

    identity: Identity
    info: PluginInfo


class Registrations:
    """Looks at `directory` once a second; registers the plugins that are new, and leaves those that are gone.

    The real one hears of sockets by inotify, and compares with what is registered once a second, too. One operation at
    a time is done for a path. The wait after a failure is the path's: a socket that is made anew has to wait as well.
    """

    def __init__(self, directory: Path, drivers: Drivers, clock: Clock, journal: Journal) -> None:
        """Know of no plugin yet."""
        self._directory = directory
        self._drivers = drivers
        self._clock = clock
        self._journal = journal
        self._registered: dict[Path, Registered] = {}
        self._operations: dict[Path, asyncio.Task[None]] = {}
        self._failed: dict[Path, Failed] = {}

    @property
    def busy(self) -> bool:
        """Whether a plugin is being registered or unregistered."""
        return bool(self._operations)

    async def run(self) -> None:
        """Compare again and again."""
        try:
            while True:
                self._compare()
                await self._clock.sleep(LOOP_SECONDS)
        finally:
            for operation in self._operations.values():
                operation.cancel()
            await asyncio.gather(*self._operations.values(), return_exceptions=True)

    def _compare(self) -> None:
        sockets = _sockets(self._directory)
        for path, registered in list(self._registered.items()):
            if sockets.get(path) != registered.identity:
                self._begin(path, lambda path=path: self._unregister(path))  # type: ignore[misc]
        for path, identity in sockets.items():
            there = self._registered.get(path)
            if there is None or there.identity != identity:
                self._begin(path, lambda path=path, identity=identity: self._register(path, identity))  # type: ignore[misc]

    def _begin(self, path: Path, operation: Callable[[], Awaitable[None]]) -> None:
        failed = self._failed.get(path)
        if path in self._operations or (failed and self._clock() - failed.at <= failed.wait):
            return
        self._operations[path] = asyncio.create_task(self._done(path, operation), name=f"registration of {path.name}")

    async def _done(self, path: Path, operation: Callable[[], Awaitable[None]]) -> None:
        try:
            await operation()
            self._failed.pop(path, None)
        except DraError:
            last = self._failed.get(path)
            wait = min(last.wait * 2, LONGEST_WAIT) if last else FIRST_WAIT
            self._failed[path] = Failed(self._clock(), wait)
        finally:
            del self._operations[path]
            self._journal.changed()

    async def _unregister(self, path: Path) -> None:
        info = self._registered.pop(path).info
        await self._drivers.deregister(info.name, info.endpoint)

    async def _register(self, path: Path, identity: Identity) -> None:
        channel = grpc.aio.insecure_channel(f"unix:{path}", options=[OWN_CONNECTION])
        error: str | None = "given up"
        info = PluginInfo()
        try:
            info = await self._info(path, channel)
            await self._take(path, identity, info, channel)
            error = None
        except DraError as refusal:
            error = str(refusal)
            raise
        finally:
            await channel.close()
            self._journal.driver_registered(DriverRegistration(path.name, info.name, info.endpoint, error))

    async def _info(self, path: Path, channel: grpc.aio.Channel) -> PluginInfo:
        try:
            await within(self._clock, DIAL_SECONDS, channel.channel_ready())
        except TimeoutError as error:
            raise DraError(
                f"RegisterPlugin error -- dial failed at socket {path}, err: failed to dial socket {path}, err: "
                "context deadline exceeded"
            ) from error
        self._journal.count("GetInfo")
        failure = f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, err: "
        try:
            info = await within(self._clock, INFO_SECONDS, answered(RegistrationStub(channel).GetInfo(InfoRequest())))
        except TimeoutError as error:
            raise DraError(f"{failure}{_too_late()}") from error
        except PluginCallError as error:
            raise DraError(f"{failure}{error}") from error
        if not info.endpoint:
            info.endpoint = str(path)
        return info

    async def _take(self, path: Path, identity: Identity, info: PluginInfo, plugin: grpc.aio.Channel) -> None:
        """Register a plugin and tell it so; what is refused is told, too."""
        if info.type != TYPE:
            why = f"no handler registered for plugin type: {info.type} at socket {path}"
            await self._notify(plugin, f"RegisterPlugin error -- {why}")
        try:
            self._drivers.service(info.name, info.endpoint, info.supported_versions)
        except DraError as error:
            await self._notify(plugin, f"RegisterPlugin error -- plugin validation failed with err: {error}")
        self._registered[path] = Registered(identity, info)
        try:
            self._drivers.register(info.name, info.endpoint, info.supported_versions)
        except DraError as error:
            del self._registered[path]
            await self._notify(plugin, f"RegisterPlugin error -- plugin registration failed with err: {error}")
        try:
            await self._notify(plugin, "")
        except DraError as error:
            self._registered.pop(path, None)
            await self._drivers.deregister(info.name, info.endpoint)
            raise DraError(
                f"RegisterPlugin error -- failed to send registration status at socket {path}, err: {error}"
            ) from error

    async def _notify(self, plugin: grpc.aio.Channel, refusal: str) -> None:
        """Tell a plugin whether it is registered; raises DraError where it is not, or does not take the answer."""
        self._journal.count("NotifyRegistrationStatus")
        status = RegistrationStatus(plugin_registered=not refusal, error=refusal)
        try:
            await within(
                self._clock, NOTIFY_SECONDS, answered(RegistrationStub(plugin).NotifyRegistrationStatus(status))
            )
        except TimeoutError as error:
            raise DraError(f"{refusal}: {_too_late()}") from error
        except PluginCallError as error:
            raise DraError(f"{refusal}: {error}") from error
        if refusal:
            raise DraError(refusal)


def _too_late() -> PluginCallError:
    return PluginCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "context deadline exceeded")


def _sockets(directory: Path) -> dict[Path, Identity]:
    """Return the sockets of a directory and of those within; names that begin with a dot are ignored."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if not path.name.startswith(".") and path.is_socket():
            about = path.stat()
            found[path] = (about.st_ino, about.st_mtime_ns)
    return found
