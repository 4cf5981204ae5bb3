"""Tests of `gpushare_plugin.gpus.nvml.events`, with the real `pynvml` and a stand-in for NVIDIA's library."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.testing.nvml import ALL_FUNCTIONS, ErrorCode, EventType, FakeGpu, FakeMigInstance, FakeNvml
from tests.unit.gpus.conftest import Node
from tests.waiting import PATIENCE, until_blocking

WAIT = "nvmlEventSetWait_v2"
REGISTER = "nvmlDeviceRegisterEvents"


class OverError(Exception):
    """Ends a watch."""


class Watch:
    """A source whose events are watched in a thread, and everything that came of it."""

    def __init__(self, node: FakeNvml, tmp_path: Path, on_pause: Callable[[float], None] | None = None) -> None:
        """Make a source of `node`; `on_pause` is called in place of pausing."""
        self.node = node
        self.source = NvmlSource(tmp_path, tmp_path, node.procfs, on_pause or self._pause)
        self.events: queue.Queue[GpuEvent] = queue.Queue()
        self.beats = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Watch from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which must not have ended before."""
        assert self._thread.is_alive()
        self._over.set()
        self.node.recover()
        self.node.raise_event(None)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def next(self) -> GpuEvent:
        """Return the next event, which may still have to come."""
        return self.events.get(timeout=PATIENCE)

    def called(self, function: str, times: int = 1) -> None:
        """Wait until a function of NVML was called so often."""
        until_blocking(lambda: self.node.calls()[function] >= times)

    def _run(self) -> None:
        with contextlib.suppress(OverError):
            self.source.watch_events(self.events.put, self._beat)

    def _beat(self) -> None:
        self.beats += 1
        if self._over.is_set():
            raise OverError

    def _pause(self, seconds: float) -> None:
        self._over.wait(seconds)


Watching = Callable[..., Watch]


@pytest.fixture
def watching(describe: Node, tmp_path: Path) -> Iterator[Watching]:
    """Describe a node and watch its events."""
    watches: list[Watch] = []

    def make(
        *gpus: FakeGpu,
        failures: dict[str, int] | None = None,
        on_pause: Callable[[float], None] | None = None,
    ) -> Watch:
        watch = Watch(describe(gpus, failures=failures), tmp_path, on_pause)
        watches.append(watch)
        watch.source.read()
        watch.start()
        return watch

    yield make
    for watch in watches:
        watch.stop()


class TestEvents:
    """What is reported of an event."""

    def test_an_xid_comes_with_the_uuid_of_its_card(self, watching: Watching) -> None:
        """XIDs of several cards come in the order they happened."""
        watch = watching(*[FakeGpu()] * 8)
        watch.called(WAIT)
        told = [(7, 79), (0, 13), (3, 94), (7, 48)]
        for gpu, xid in told:
            watch.node.raise_event(gpu, data=xid)
        assert [watch.next() for _ in told] == [
            GpuEvent(watch.node.gpus[gpu].uuid, xid, f"XID {xid}") for gpu, xid in told
        ]
        assert watch.node.calls()[REGISTER] == 8

    def test_a_double_bit_error_is_xid_48(self, watching: Watching) -> None:
        """An ECC event has no number of its own; the XID that NVIDIA gives that error is reported."""
        watch = watching(FakeGpu())
        watch.called(WAIT)
        watch.node.raise_event(0, EventType.DOUBLE_BIT_ECC_ERROR)
        assert watch.next() == GpuEvent(watch.node.gpus[0].uuid, 48, "double-bit ECC error")

    def test_events_that_are_no_faults_are_not_asked_for(self, watching: Watching) -> None:
        """Clocks, power states and corrected errors are not told."""
        watch = watching(FakeGpu())
        watch.called(WAIT)
        for event in (EventType.CLOCK, EventType.PSTATE, EventType.SINGLE_BIT_ECC_ERROR):
            watch.node.raise_event(0, event)
        watch.node.raise_event(0, data=79)
        assert watch.next().xid == 79

    def test_an_event_without_a_device_names_no_card(self, watching: Watching) -> None:
        """Where the driver does not say which card it was, no card is named."""
        watch = watching(FakeGpu(), FakeGpu())
        watch.called(WAIT)
        watch.node.raise_event(None, data=79)
        assert watch.next() == GpuEvent(None, 79, "XID 79")

    def test_a_card_that_fell_off_the_bus_is_still_named(self, watching: Watching) -> None:
        """A card that no longer says who it is, is known by its handle, so the others are not suspected."""
        watch = watching(FakeGpu(), FakeGpu())
        watch.called(WAIT)
        watch.node.fail(1, ALL_FUNCTIONS, ErrorCode.GPU_IS_LOST)
        watch.node.raise_event(1, data=79)
        assert watch.next() == GpuEvent(watch.node.gpus[1].uuid, 79, "XID 79")

    def test_a_card_whose_uuid_is_no_text_any_more_is_still_named(self, watching: Watching) -> None:
        """What a card says of itself may become nonsense; its handle is still the same, and the thread lives."""
        watch = watching(FakeGpu(), FakeGpu())
        watch.called(WAIT)
        uuid = watch.node.gpus[1].uuid
        watch.node.replace_gpu(1, FakeGpu(uuid="GPU-\udcff"))
        watch.node.raise_event(1, data=79)
        assert watch.next() == GpuEvent(uuid, 79, "XID 79")

    def test_an_event_of_a_mig_instance_names_the_instance(self, watching: Watching) -> None:
        """An event of a MIG instance has its card's UUID, and says which instance it was, in words and in numbers."""
        watch = watching(FakeGpu(mig_enabled=True, mig_instances=(FakeMigInstance(gpu_instance=7),)))
        watch.called(WAIT)
        watch.node.raise_event(0, data=94, gpu_instance=7, compute_instance=0)
        watch.node.raise_event(0, data=95, gpu_instance=7)
        uuid = watch.node.gpus[0].uuid
        assert watch.next() == GpuEvent(uuid, 94, "XID 94 in MIG GPU instance 7, compute instance 0", 7, 0)
        assert watch.next() == GpuEvent(uuid, 95, "XID 95 in MIG GPU instance 7", 7)


class TestRegistration:
    """Which cards are watched."""

    @pytest.mark.parametrize(
        "function", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"]
    )
    def test_a_card_that_cannot_be_registered_is_told_once(self, watching: Watching, function: str) -> None:
        """It is tried again after each look, told once, and watched when that works; the other is not concerned."""
        watch = watching(FakeGpu(failures={function: ErrorCode.UNKNOWN}), FakeGpu())
        refused, well = (gpu.uuid for gpu in watch.node.gpus)
        assert watch.next() == GpuEvent(refused, None, "events of this GPU cannot be watched: Unknown Error")
        watch.called(WAIT)
        for xid in (79, 95):
            tried = watch.node.calls()[function]
            assert watch.source.read().unwatched == {refused: "events of this GPU cannot be watched: Unknown Error"}
            watch.node.raise_event(1, data=xid)
            watch.called(function, tried + 1)
            assert watch.next() == GpuEvent(well, xid, f"XID {xid}")
        registered = watch.node.calls()[REGISTER]
        watch.node.recover(0)
        watch.source.read()
        watch.called(REGISTER, registered + 1)
        watch.node.raise_event(0, data=62)
        assert watch.next() == GpuEvent(refused, 62, "XID 62")
        assert watch.source.read().unwatched == {}

    @pytest.mark.parametrize("code", [ErrorCode.NOT_SUPPORTED, ErrorCode.FUNCTION_NOT_FOUND, ErrorCode.NO_PERMISSION])
    def test_a_card_without_events_is_no_fault(self, watching: Watching, code: ErrorCode) -> None:
        """A card that has no such events, or no answer to the question, is asked once; the other card is watched."""
        watch = watching(
            FakeGpu(failures={"nvmlDeviceGetSupportedEventTypes": code}),
            FakeGpu(supported_events=EventType.CLOCK),
            FakeGpu(failures={REGISTER: code}),
            FakeGpu(supported_events=EventType.XID_CRITICAL_ERROR),
        )
        watch.called(WAIT)
        for xid in (1, 2):
            watch.source.read()
            watch.node.raise_event(3, data=xid)
            watch.called(WAIT, 1 + xid)
        assert [watch.next().xid, watch.next().xid] == [1, 2]
        assert watch.node.calls()["nvmlDeviceGetSupportedEventTypes"] == 4
        assert watch.source.read().unwatched == {}

    def test_a_thread_with_only_cards_too_old_for_events_rests(self, watching: Watching) -> None:
        """With nothing to wait for the thread rests, and lives."""
        rested = threading.Semaphore(0)

        def pause(seconds: float) -> None:
            rested.release()
            time.sleep(min(seconds, 0.01))

        watch = watching(FakeGpu(supported_events=EventType.CLOCK), on_pause=pause)
        assert all(rested.acquire(timeout=PATIENCE) for _ in range(3))
        assert watch.node.calls()[WAIT] == 0
        assert watch.beats >= 3

    def test_cards_that_appear_are_watched(self, watching: Watching) -> None:
        """NVML begins anew for a new card; the watch survives that, and both cards are watched."""
        watch = watching(FakeGpu())
        watch.called(WAIT)
        watch.node.add_gpu(FakeGpu())
        assert len(watch.source.read().cards) == 2
        watch.called(REGISTER, 3)
        watch.node.raise_event(1, data=79)
        watch.node.raise_event(0, data=48)
        assert [(event.uuid, event.xid) for event in (watch.next(), watch.next())] == [
            (watch.node.gpus[1].uuid, 79),
            (watch.node.gpus[0].uuid, 48),
        ]
        calls = watch.node.calls()
        assert (calls["nvmlInitWithFlags"], calls["nvmlEventSetCreate"]) == (2, 2)

    def test_a_card_that_comes_back_is_watched_again(self, watching: Watching) -> None:
        """A card that failed one look and answers the next is registered once more, in the same event set."""
        watch = watching(FakeGpu(), FakeGpu())
        watch.called(WAIT)
        watch.node.fail(1, ALL_FUNCTIONS, ErrorCode.UNKNOWN)
        assert len(watch.source.read().cards) == 1
        waits = watch.node.calls()[WAIT]
        watch.node.raise_event(0, data=1)
        watch.called(WAIT, waits + 1)
        watch.node.recover(1)
        watch.source.read()
        watch.called(REGISTER, 3)
        watch.node.raise_event(1, data=2)
        assert [watch.next().xid, watch.next().xid] == [1, 2]
        assert watch.node.calls()["nvmlEventSetCreate"] == 1

    def test_the_thread_shows_life_before_the_first_look_succeeds(self, describe: Node, tmp_path: Path) -> None:
        """Signs of life come while no look has succeeded yet; the cards are watched when one has."""
        node = describe([FakeGpu()])
        watch = Watch(node, tmp_path)
        watch.start()
        until_blocking(lambda: watch.beats >= 2)
        assert node.calls() == {}
        watch.source.read()
        watch.called(WAIT)
        node.raise_event(0, data=79)
        assert watch.next().xid == 79
        watch.stop()


class Outage:
    """Ends an outage after so many seconds of pausing, in which no time passes."""

    def __init__(self, seconds: float) -> None:
        """Take note of all pauses."""
        self.left = seconds
        self.pauses: list[float] = []
        self.node: FakeNvml | None = None

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        self.pauses.append(seconds)
        self.left -= seconds
        if self.node and self.left <= 0 < self.left + seconds:
            self.node.recover()


class TestOutages:
    """NVML fails to wait."""

    @pytest.mark.parametrize("function", [WAIT, "nvmlEventSetCreate"])
    def test_lasting_failures_are_tried_seldom_and_told_once(self, watching: Watching, function: str) -> None:
        """Ten minutes of failures are fifteen attempts and one report; afterwards events are reported again."""
        outage = Outage(600)
        ready = threading.Event()

        def pause(seconds: float) -> None:
            ready.wait(PATIENCE)
            outage.pause(seconds)

        watch = watching(FakeGpu(), FakeGpu(), failures={function: ErrorCode.UNKNOWN}, on_pause=pause)
        outage.node = watch.node
        ready.set()
        assert watch.next() == GpuEvent(None, None, "events cannot be watched: Unknown Error")
        assert watch.source.read().unwatched == dict.fromkeys(
            (gpu.uuid for gpu in watch.node.gpus), "events cannot be watched: Unknown Error"
        )
        until_blocking(lambda: outage.left <= 0 and watch.node.calls()[REGISTER] % 2 == 0)
        # 1 + 2 + 4 + 8 + 16 + 32 seconds, then every 60.
        failures = 6 + 9
        watch.called(WAIT, failures + 1 if function == WAIT else 1)
        watch.node.raise_event(0, data=79)
        assert watch.next() == GpuEvent(watch.node.gpus[0].uuid, 79, "XID 79")
        assert watch.source.read().unwatched == {}
        assert outage.pauses[:6] == [1, 2, 2, 2, 2, 2]
        assert max(outage.pauses) == 2
        calls = watch.node.calls()
        assert calls["nvmlEventSetCreate"] == failures + 1
        assert calls[REGISTER] == 2 * (failures + 1 if function == WAIT else 1)
        assert calls["nvmlEventSetFree"] == (failures if function == WAIT else 0)
        assert watch.beats >= len(outage.pauses)

    def test_a_short_failure_is_not_reported(self, watching: Watching) -> None:
        """Two failures in a row pass; the card goes on being watched."""
        outage = Outage(1 + 2)
        watch = watching(FakeGpu(), on_pause=outage.pause)
        outage.node = watch.node
        watch.called(WAIT)
        watch.node.fail(None, WAIT, ErrorCode.UNKNOWN)
        # The wait that was going on, one more that fails, and one that works.
        watch.called(WAIT, 3)
        watch.called(REGISTER, 3)
        watch.node.raise_event(0, data=79)
        assert watch.next().xid == 79

    def test_every_outage_is_reported_once(self, watching: Watching) -> None:
        """One report an outage: the next one is another."""
        outage = Outage(30)
        watch = watching(FakeGpu(), on_pause=outage.pause)
        outage.node = watch.node
        for number in range(3):
            waits = watch.node.calls()[WAIT]
            outage.left = 30
            watch.node.fail(None, WAIT, ErrorCode.UNKNOWN)
            assert watch.next() == GpuEvent(None, None, "events cannot be watched: Unknown Error"), number
            # 1 + 2 + 4 + 8 + 16 seconds: five failures, one wait that was going on at most, and one that works.
            watch.called(WAIT, waits + 6)
            watch.called(REGISTER, watch.node.calls()["nvmlEventSetCreate"])
            watch.node.raise_event(0, data=number)
            assert watch.next().xid == number

    def test_a_driver_that_does_not_wait_is_not_asked_all_the_time(self, watching: Watching) -> None:
        """Where "nothing yet" is answered at once, the thread rests instead, and nothing is reported."""
        outage = Outage(100)
        watch = watching(FakeGpu(), failures={WAIT: ErrorCode.TIMEOUT}, on_pause=outage.pause)
        outage.node = watch.node
        until_blocking(lambda: outage.left <= 0)
        assert watch.node.calls()[WAIT] <= len(outage.pauses) + 1
        assert watch.events.empty()

    def test_nvml_begins_anew_during_an_outage(self, watching: Watching) -> None:
        """A look that has to initialise NVML need not wait for the end of the pauses."""
        paused, go_on = threading.Event(), threading.Event()

        def pause(_seconds: float) -> None:
            paused.set()
            go_on.wait(PATIENCE)

        watch = watching(FakeGpu(), failures={WAIT: ErrorCode.UNKNOWN}, on_pause=pause)
        assert paused.wait(PATIENCE)
        watch.node.add_gpu(FakeGpu())
        assert len(watch.source.read().cards) == 2
        watch.node.recover()
        go_on.set()
        watch.called(REGISTER, 3)
        watch.node.raise_event(1, data=79)
        assert watch.next() == GpuEvent(watch.node.gpus[1].uuid, 79, "XID 79")
