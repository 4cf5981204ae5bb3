"""Waiting for the events of GPUs: XIDs and double-bit ECC errors.

Facts: nvml.h of the CUDA toolkit. A GPU reports an event only to the event sets with which the GPU is registered.
Events are lost while a set is recreated, so probes of the cards have to find the faults.
"""

import ctypes
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

import pynvml
import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.gpus.nvml.library import KnownCards, NvmlLibrary
from gpushare_plugin.gpus.nvml.unanswered import UNANSWERED

_log = structlog.get_logger()

_WAIT_SECONDS = 2.0
"""The length of a wait in seconds. Between two waits, new cards are registered and a heartbeat is given."""
_TOLERATED_FAILURES = 2
_EVENTS = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
_DOUBLE_BIT_ECC_XID = 48
_NO_INSTANCE = 0xFFFFFFFF
"""NVML's number for no instance."""


class EventWatch:
    """Waits for the events of all GPUs, in a single thread."""

    def __init__(
        self,
        library: NvmlLibrary,
        report: Callable[[GpuEvent], None],
        beat: Callable[[], None],
        pause: Callable[[float], None],
    ) -> None:
        """Call `report` for every event, `beat` every few seconds, and `pause` to wait before the next attempt."""
        self._library = library
        self._report = report
        self._beat = beat
        self._pause = pause
        self._set: _EventSet | None = None
        self._seen: KnownCards | None = None
        self._silent: set[str] = set()
        self._refused: dict[str, str] = {}
        self._blind: str | None = None
        self._backoff = Backoff(first=1.0, most=60.0)

    def run(self) -> NoReturn:
        """Wait for events forever; only an exception of `report`, `beat` or `pause` ends the wait."""
        while True:
            self._beat()
            with self._library.lent(_WAIT_SECONDS) as cards:
                rest = self._wait(cards) if cards else 0.0
            self._rest(rest)

    def unwatched(self, uuids: Iterable[str]) -> dict[str, str]:
        """Return the cards of `uuids` that are not watched, each with the reason; any thread may ask."""
        blind, refused = self._blind, self._refused
        return {uuid: reason for uuid in uuids if (reason := blind or refused.get(uuid))}

    def _rest(self, seconds: float) -> None:
        while seconds > 0:
            step = min(seconds, _WAIT_SECONDS)
            self._pause(step)
            self._beat()
            seconds -= step

    def _wait(self, cards: KnownCards) -> float:
        """Wait once, and return the seconds to rest before the next wait."""
        try:
            events = self._events_of(cards)
            if not events.registered:
                self._blind = None  # no registered card, so no event can be missed
                return _WAIT_SECONDS
            before = time.monotonic()
            event = events.next()
        except pynvml.NVMLError as error:
            return self._failed(error)
        if self._blind is not None:
            self._blind = None
            _log.info("gpu_events_restored")
        self._backoff.reset()
        if event is not None:
            _log.debug("gpu_event_received", uuid=event.uuid, xid=event.xid, reason=event.detail)
            self._report(event)
            return 0.0
        # A driver that times out without waiting must not keep a processor busy.
        return _WAIT_SECONDS if time.monotonic() - before < _WAIT_SECONDS / 2 else 0.0

    def _events_of(self, cards: KnownCards) -> "_EventSet":
        """Return the event set with every possible card registered; recreate the set after a restart of NVML."""
        if self._set is None or self._set.initialisation != cards.initialisation:
            self._set = _EventSet(cards.initialisation)
            self._seen = None
        if cards is not self._seen:
            self._register(self._set, cards)
            self._seen = cards
        return self._set

    def _register(self, events: "_EventSet", cards: KnownCards) -> None:
        # Forget removed cards: a card may return in another state.
        self._silent &= cards.uuids
        refused = {uuid: reason for uuid, reason in self._refused.items() if uuid in cards.uuids}
        events.registered &= cards.uuids
        for uuid in sorted(cards.uuids - events.registered - self._silent):
            try:
                events.register(uuid)
            except UNANSWERED:
                self._silent.add(uuid)
                reason = "this GPU, or its driver, reports no events: only periodic probes show whether it is healthy"
                _log.warning("gpu_events_unsupported", uuid=uuid, reason=reason)
            except pynvml.NVMLError as error:
                if uuid not in refused:
                    refused[uuid] = f"events of this GPU cannot be watched: {error}"
                    self._report(GpuEvent(uuid, None, refused[uuid]))
            else:
                refused.pop(uuid, None)
        self._refused = refused

    def _failed(self, error: pynvml.NVMLError) -> float:
        if self._set is not None:
            self._set.free()
            self._set = None
        rest = self._backoff.next()
        _log.warning("gpu_events_unwatched", error=str(error), retry_seconds=rest)
        if self._backoff.failures > _TOLERATED_FAILURES and self._blind is None:
            self._blind = f"events cannot be watched: {error}"
            self._report(GpuEvent(None, None, self._blind))
        return rest


class _EventSet:
    """An event set of NVML, and the cards registered with the set."""

    def __init__(self, initialisation: int) -> None:
        """Create an event set, which lives until NVML is initialised again."""
        self.initialisation = initialisation
        self.registered: set[str] = set()
        self._set = pynvml.nvmlEventSetCreate()
        self._uuids: dict[int | None, str] = {}

    def register(self, uuid: str) -> None:
        """Register a card for events; raises NVMLError, one of UNANSWERED for a card without events."""
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        types = _EVENTS & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
        if not types:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        pynvml.nvmlDeviceRegisterEvents(handle, types, self._set)
        self._uuids[_address(handle)] = uuid
        self.registered.add(uuid)

    def next(self) -> GpuEvent | None:
        """Wait for an event, and return None if no event came."""
        try:
            data = pynvml.nvmlEventSetWait_v2(self._set, int(_WAIT_SECONDS * 1000))
        except pynvml.NVMLError_Timeout:
            return None
        if data.eventType == pynvml.nvmlEventTypeDoubleBitEccError:
            xid, what = _DOUBLE_BIT_ECC_XID, "double-bit ECC error"
        else:
            xid, what = int(data.eventData), f"XID {data.eventData}"
        where, gpu_instance, compute_instance = "", _instance(data.gpuInstanceId), _instance(data.computeInstanceId)
        if gpu_instance is not None:
            where = f" in MIG GPU instance {gpu_instance}"
            where += f", compute instance {compute_instance}" if compute_instance is not None else ""
        return GpuEvent(self._uuid_of(data.device), xid, f"{what}{where}", gpu_instance, compute_instance)

    def free(self) -> None:
        """Free the event set, and ignore a refusal of NVML."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._set)

    def _uuid_of(self, handle: Any) -> str | None:
        if not handle:
            return None
        try:
            return str(pynvml.nvmlDeviceGetUUID(handle))
        except (pynvml.NVMLError, ValueError):
            # A card off the bus has no UUID or a wrong UUID, but still the same handle.
            return self._uuids.get(_address(handle))


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else number
