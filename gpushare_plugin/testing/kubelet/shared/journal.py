"""What the embedded kubelet has seen and done, and a way to wait for changes."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Registration:
    """One Register call about to be answered; `error` is the answer to the plugin, None when it is accepted."""

    resource: str
    endpoint: str
    version: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Disconnection:
    """A resource that lost its plugin because a device list stream ended; `error` says how (`EOF`: in good order)."""

    resource: str
    error: str


@dataclass(frozen=True, slots=True)
class DriverRegistration:
    """One registration of a DRA driver that came to an end, by its `socket`; `error` is None where it is accepted."""

    socket: str
    driver: str
    endpoint: str
    error: str | None


class Journal:
    """Calls by method, registrations and disconnections, over all restarts; every entry wakes those who wait."""

    def __init__(self) -> None:
        """Start empty."""
        self.calls: Counter[str] = Counter()
        self.registrations: list[Registration] = []
        self.disconnections: list[Disconnection] = []
        self.driver_registrations: list[DriverRegistration] = []
        self._waiting: dict[asyncio.Future[None], Callable[[], object]] = {}

    def count(self, method: str) -> None:
        """Note one call of `method`, by a plugin or to it."""
        self.calls[method] += 1
        self.changed()

    def registered(self, registration: Registration) -> None:
        """Note `registration`."""
        self.registrations.append(registration)
        self.changed()

    def disconnected(self, disconnection: Disconnection) -> None:
        """Note `disconnection`."""
        self.disconnections.append(disconnection)
        self.changed()

    def driver_registered(self, registration: DriverRegistration) -> None:
        """Note `registration`."""
        self.driver_registrations.append(registration)
        self.changed()

    def changed(self) -> None:
        """Wake everybody for whom the change is what they wait for, also if the next change undoes it at once."""
        for waiter, condition in self._waiting.items():
            _look(waiter, condition)
            # Whoever notes a change may not have made all of it.
            waiter.get_loop().call_soon(_look, waiter, condition)

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` holds; it is asked now and at each change."""
        if condition():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = condition
        try:
            await waiter
        finally:
            del self._waiting[waiter]


def _look(waiter: asyncio.Future[None], condition: Callable[[], object]) -> None:
    """End the wait of `waiter` if its condition holds, or breaks."""
    if waiter.done():
        return
    try:
        if condition():
            waiter.set_result(None)
    except Exception as error:  # noqa: BLE001 - for whoever waits
        waiter.set_exception(error)
