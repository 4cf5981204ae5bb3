"""Tests of `gpushare_plugin.kubelet.allocations.reader`: when it is believed that nobody holds a unit."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from gpushare_plugin.core.holding import Confirmed, Holding, Unknown
from gpushare_plugin.kubelet.allocations.checkpoint import CHECKPOINT
from gpushare_plugin.kubelet.allocations.reader import HoldingsReader
from gpushare_plugin.kubelet.allocations.trust import TrustDelays
from gpushare_plugin.kubelet.api import podresources_pb2 as api
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET
from gpushare_plugin.kubelet.device_plugin.session import Session
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.logs import logged
from tests.unit.kubelet.serving import answering_bytes, running, shared_memory
from tests.unit.kubelet.test_pod_resources import answering
from tests.waiting import PATIENCE, until

GPU_MEM = "aliyun.com/gpu-mem"
OWN = ("kube-system", "gpushare-abcde")
MAIN = Container("main", {GPU_MEM: 3})
PLAIN = Container("plain")
P = ParamSpec("P")
T = TypeVar("T")
DELAYS = TrustDelays(own_pod_shown=5.0, unknown=60.0)


@dataclass
class Clock:
    """A clock in the hands of a test, in seconds."""

    now: float = 1000.0
    looks: int = 0

    def __call__(self) -> float:
        """Tell the time."""
        self.looks += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands still."""
    return Clock()


@asynccontextmanager
async def holding(kubelet: EmbeddedKubelet) -> AsyncIterator[frozenset[str]]:
    """Let a pod in, and yield what it holds."""
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        admitted = await kubelet.admit(Pod("pod", [Container("main", {GPU_MEM: 3})], namespace="team"))
        yield admitted.containers["main"].device_ids[GPU_MEM]


async def held(reader: HoldingsReader, clock: Clock) -> Mapping[str, str] | None:
    """Return what is held, by pod, as of now; None while that is not confirmed."""
    found = await reader.confirmed(clock.now)
    if isinstance(found, Unknown):
        return None
    assert found.asked_at == clock.now
    return holders(found)


async def at_start(reader: HoldingsReader) -> frozenset[tuple[str, str]] | None:
    """Return what was held before, as resource and ID; None while that is not known."""
    found = await reader.at_start()
    return None if isinstance(found, Unknown) else frozenset((each.resource, id_) for each in found for id_ in each.ids)


def holders(found: Confirmed) -> dict[str, str]:
    """Return who holds each unit."""
    return {id_: each.label for each in found.holdings for id_ in each.ids}


def made_by(directory: Path) -> Path:
    """Return a plugin directory where some kubelet made its socket."""
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / KUBELET_SOCKET))
    return directory


class Threads(ThreadPoolExecutor):
    """The threads of an event loop; `works` counts what they were given to do."""

    works = 0

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Count it, and do it."""
        self.works += 1
        return super().submit(work, *args, **kwargs)


async def test_units_of_many_pods_are_read_in_threads(kubelet: EmbeddedKubelet, clock: Clock) -> None:
    """However many units there are to read, the event loop goes on: the answer, the record, and both put together."""
    asyncio.get_running_loop().set_default_executor(threads := Threads())
    reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, clock=clock)
    async with holding(kubelet) as ids:
        assert await at_start(reader) == frozenset((GPU_MEM, id_) for id_ in ids)
        assert threads.works == 1
        clock.now += 3600
        assert await held(reader, clock) == dict.fromkeys(ids, "team/pod")
        assert threads.works == 4


async def test_a_kubelet_that_was_there_for_long_is_believed(kubelet: EmbeddedKubelet, clock: Clock) -> None:
    """It is the time since we first saw it that counts, on a clock nobody can set."""
    reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, delays=DELAYS, clock=clock)
    async with holding(kubelet) as ids:
        assert isinstance(await reader.confirmed(clock.now), Unknown)
        clock.now += 59
        assert isinstance(await reader.confirmed(clock.now), Unknown)
        clock.now += 1
        assert await held(reader, clock) == dict.fromkeys(ids, "team/pod")


@pytest.mark.parametrize("graceful", [True, False])
async def test_a_kubelet_that_restarted_is_believed_later(
    kubelet: EmbeddedKubelet,
    clock: Clock,
    graceful: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """A new kubelet does not know its pods at first, so its empty answer says nothing."""
    reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, delays=DELAYS, clock=clock)
    clock.now += 60
    assert await held(reader, clock) == {}
    await kubelet.restart(graceful=graceful)
    assert isinstance(await reader.confirmed(clock.now), Unknown)
    clock.now += 59
    assert isinstance(await reader.confirmed(clock.now), Unknown)
    clock.now += 1
    assert await held(reader, clock) == {}


async def test_a_new_pod_resources_socket_beside_an_old_plugin_socket_is_not_believed(
    short_path: Path, clock: Clock
) -> None:
    """The younger of the two sockets tells how old the kubelet is that answers."""
    directory = made_by(short_path / "plugins")
    async with answering(short_path) as pod_resources:
        reader = HoldingsReader(directory, pod_resources, delays=DELAYS, clock=clock)
        clock.now += 60
        assert await held(reader, clock) == {}
    async with answering(short_path) as pod_resources:
        assert isinstance(await reader.confirmed(clock.now), Unknown)
        clock.now += 60
        assert await held(reader, clock) == {}


async def test_a_kubelet_that_shows_our_own_pod_is_believed_soon(short_path: Path, clock: Clock) -> None:
    """It has reached the API server; without that, no time is long enough."""
    directory = made_by(short_path / "plugins")
    ours = api.PodResources(namespace=OWN[0], name=OWN[1])
    async with answering(short_path, api.PodResources(namespace="kube-system", name="static")) as pod_resources:
        reader = HoldingsReader(directory, pod_resources, own_pod=OWN, delays=DELAYS, clock=clock)
        clock.now += 3600
        assert isinstance(await reader.confirmed(clock.now), Unknown)
    async with answering(short_path, ours) as pod_resources:
        assert isinstance(await reader.confirmed(clock.now), Unknown)  # another kubelet
        assert isinstance(await reader.confirmed(clock.now), Unknown)
        clock.now += 5
        assert await held(reader, clock) == {}


async def test_a_kubelets_age_counts_from_when_it_came(kubelet: EmbeddedKubelet, clock: Clock) -> None:
    """Nobody had a question for an hour in which the kubelet restarted: by now it has been there for long."""
    reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, delays=DELAYS, clock=clock)
    clock.now += 3600
    await kubelet.restart()
    looks = clock.looks
    watching = asyncio.create_task(reader.watch())
    try:
        await until(lambda: clock.looks > looks)  # the clock is looked at when another kubelet is seen
        clock.now += 60
        assert await held(reader, clock) == {}
    finally:
        watching.cancel()


class Record:
    """The record of a kubelet that is sent its device list anew."""

    def __init__(self, kubelet: EmbeddedKubelet, session: Session) -> None:
        """Follow what `kubelet` writes for `session`."""
        self._file = kubelet.plugin_directory / CHECKPOINT
        self._session = session

    async def renewed(self) -> None:
        """Have the record written anew."""
        before = self._file.stat()
        async with asyncio.timeout(PATIENCE):
            while (now := self._file.stat()).st_ino == before.st_ino and now.st_mtime_ns == before.st_mtime_ns:
                if self._session.registered:
                    self._session.resend()
                await asyncio.sleep(0.01)


async def test_a_record_written_since_the_last_question_is_believed_of_any_kubelet(
    kubelet: EmbeddedKubelet, clock: Clock
) -> None:
    """As of that question, and not before: what was written earlier may lack what was in memory only."""
    reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, delays=DELAYS, clock=clock)
    async with running(kubelet.plugin_directory, shared_memory(8)) as (session,):
        record = Record(kubelet, session)
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        pod = Pod("pod", [Container("main", {GPU_MEM: 3})], namespace="team")
        ids = (await kubelet.admit(pod)).containers["main"].device_ids[GPU_MEM]
        await record.renewed()
        doubt = await reader.confirmed(clock.now)
        assert isinstance(doubt, Unknown)
        assert doubt.answered
        clock.now += 2
        assert isinstance(await reader.confirmed(clock.now), Unknown)  # nothing was written meanwhile
        asked_at, clock.now = clock.now, clock.now + 2
        await record.renewed()
        found = await reader.confirmed(clock.now)
        assert isinstance(found, Confirmed)
        assert (holders(found), found.asked_at) == (dict.fromkeys(ids, "team/pod"), asked_at)
        kubelet.delete(pod)
        # And the kubelet comes to know that the pod is over.
        assert isinstance(await reader.confirmed(clock.now), Unknown)
        await record.renewed()
        assert await held(reader, clock) == {}
        (kubelet.plugin_directory / CHECKPOINT).write_text("nonsense")
        assert isinstance(await reader.confirmed(clock.now), Unknown)
        (kubelet.plugin_directory / CHECKPOINT).unlink()
        assert isinstance(await reader.confirmed(clock.now), Unknown)


@pytest.mark.parametrize("seed", range(6))
async def test_every_unit_that_a_pod_holds_is_in_the_allocations(short_path: Path, clock: Clock, seed: int) -> None:
    """Whatever pods and kubelets do, and whether it knows its pods or not: what is held at the time is in it."""
    draw = random.Random(seed)  # noqa: S311 - nothing secret is drawn
    directory, believed = short_path / "device-plugins", 0
    async with (
        EmbeddedKubelet(short_path, rng=draw) as kubelet,
        running(directory, shared_memory(24)) as (session,),
    ):
        reader = HoldingsReader(directory, kubelet.pod_resources_socket, delays=DELAYS, clock=clock)
        record = Record(kubelet, session)
        knows, times = True, dict[str, tuple[float, frozenset[str]]]()
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 24)
        for number in range(60):
            clock.now += 1
            match draw.choice(["admit", "delete", "restart", "learn", "write", "write", "ask", "ask"]):
                case "admit" if knows and len(times) < 5:
                    await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 24)
                    one = Pod(f"pod-{number}", *draw.choice([([MAIN], []), ([PLAIN], [MAIN])]))
                    admitted = await kubelet.admit(one)
                    given = frozenset().union(
                        *(each.device_ids.get(GPU_MEM, ()) for each in admitted.containers.values())
                    )
                    times[one.uid] = clock.now, given
                case "delete" if times:
                    gone = draw.choice(sorted(times))
                    kubelet.delete(kubelet.pods[gone])
                    del times[gone]
                case "restart":
                    knows = draw.random() < 0.5
                    await kubelet.restart(graceful=draw.random() < 0.5, knows_pods=knows)
                case "learn":
                    kubelet.learn_pods()
                    knows = True
                case "write":
                    await record.renewed()
                case "ask":
                    if isinstance(found := await reader.confirmed(clock.now), Confirmed):
                        believed += 1
                        for since, ids in times.values():
                            assert since > found.asked_at or ids <= found.ids
                case _:
                    pass
    assert believed, "nothing was ever believed, so nothing was shown"


async def test_a_socket_that_does_not_answer_tells_no_allocations(short_path: Path, clock: Clock) -> None:
    """A socket that does not answer tells nothing, however long it does not."""
    reader = HoldingsReader(short_path, short_path / "none.sock", delays=DELAYS, clock=clock)
    clock.now += 3600
    assert isinstance(await reader.confirmed(clock.now), Unknown)


async def test_units_held_from_before_come_from_the_checkpoint_or_else_the_kubelet(
    kubelet: EmbeddedKubelet, clock: Clock
) -> None:
    """The record is believed at once; without it nothing is known until the kubelet can be believed."""
    reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, delays=DELAYS, clock=clock)
    async with holding(kubelet) as ids:
        expected = frozenset((GPU_MEM, id_) for id_ in ids)
        assert await at_start(reader) == expected
        (kubelet.plugin_directory / CHECKPOINT).write_text("nonsense")
        assert await at_start(reader) is None
        clock.now += 60
        assert await at_start(reader) == expected
    await kubelet.stop()
    assert await at_start(reader) is None


async def test_all_that_another_daemon_may_still_allocate_counts_as_held(kubelet: EmbeddedKubelet) -> None:
    """A daemon that takes over keeps every listed unit, until the kubelet has shown that it is free."""
    async with holding(kubelet):
        listed = frozenset((GPU_MEM, id_) for id_ in kubelet.devices(GPU_MEM))
        reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, takes_over=True)
        assert await at_start(reader) == listed
        assert len(listed) == 8


async def test_a_missing_directory_tells_nothing(short_path: Path, clock: Clock) -> None:
    """Where the kubelet's directory is not mounted yet, it is not known what pods hold: said again every 5 minutes."""
    reader = HoldingsReader(short_path / "none", short_path / "none.sock", delays=DELAYS, clock=clock)
    with logged() as told:
        for seconds in (0, 1, 299, 10, 3600):
            clock.now += seconds
            assert await at_start(reader) is None
    assert [each["event"] for each in told] == ["allocations_unknown"] * 3


async def test_records_and_answers_that_cannot_be_understood_tell_nothing(short_path: Path, clock: Clock) -> None:
    """An unreadable record beside an answer that is none: not known, said once, however often it is asked."""
    directory = made_by(short_path / "plugins")
    os.mkfifo(directory / CHECKPOINT)
    with logged() as told:
        async with answering_bytes(short_path, b"\xff\xff") as pod_resources:
            reader = HoldingsReader(directory, pod_resources, delays=DELAYS, clock=clock)
            for _ in range(3):
                clock.now += 60
                assert await at_start(reader) is None
                assert isinstance(await reader.confirmed(clock.now), Unknown)
    assert sorted(each["event"] for each in told) == [
        "allocations_unknown",
        "retired_units_kept",
    ]


async def test_containers_are_known_without_a_checkpoint(kubelet: EmbeddedKubelet, clock: Clock) -> None:
    """The checkpoint names pods by UID; where it cannot be read, pod-resources does for pods whose UIDs are known."""
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        pod = Pod("pod", [MAIN])
        admitted = await kubelet.admit(pod)
        ids = admitted.containers["main"].device_ids[GPU_MEM]
        delays = TrustDelays(unknown=5.0)
        reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, delays=delays, clock=clock)
        recorded = Holding("", "", "main", GPU_MEM, ids, pod.uid)
        assert await reader.with_uids({}) == (recorded,)
        checkpoint = kubelet.plugin_directory / CHECKPOINT
        checkpoint.write_text("nonsense")
        assert isinstance(await reader.with_uids({(pod.namespace, pod.name): pod.uid}), Unknown)
        clock.now += 5.0
        shown = recorded._replace(namespace=pod.namespace, pod=pod.name)
        assert await reader.with_uids({(pod.namespace, pod.name): pod.uid}) == (shown,)
        assert await reader.with_uids({("default", "another"): "uid"}) == ()
