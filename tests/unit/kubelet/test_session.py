"""Tests of `gpushare_plugin.kubelet.device_plugin.session` and `directory`, against an embedded kubelet."""

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from asyncinotify import Inotify

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.socket_path import LONGEST_SOCKET_PATH
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.chooser import Replicas
from gpushare_plugin.core.resource import Resource, Units
from gpushare_plugin.kubelet.api.deviceplugin_pb2 import Empty, RegisterRequest
from gpushare_plugin.kubelet.api.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from gpushare_plugin.kubelet.device_plugin.directory import (
    KUBELET_SOCKET,
    LOCK_FILE,
    PluginDirectory,
    refuse_long_path,
)
from gpushare_plugin.kubelet.device_plugin.plugin_socket import socket_name
from gpushare_plugin.kubelet.device_plugin.session import Session
from gpushare_plugin.kubelet.serving.watched_directory import Identity
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.sharing.ways.replicas import ReplicaGranter, replica_units
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from tests.logs import logged
from tests.nodes import a_gpu
from tests.unit.kubelet.serving import running, shared_memory
from tests.waiting import until

GPU_MEM = "aliyun.com/gpu-mem"


async def until_allocatable(kubelet: EmbeddedKubelet, count: int = 8, resource: str = GPU_MEM) -> None:
    """Wait until the kubelet counts so many healthy units."""
    await kubelet.wait_for(lambda node: node.allocatable().get(resource) == count)


async def test_a_resource_is_served_registered_and_listed(kubelet: EmbeddedKubelet) -> None:
    """The kubelet counts every unit, and a pod gets its share."""
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await until_allocatable(kubelet)
        admitted = await kubelet.admit(Pod("pod", [Container("main", {GPU_MEM: 5})]))
    assert admitted.containers["main"].environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == "5"


async def test_a_session_that_ends_while_it_starts_leaves_nothing_behind(kubelet: EmbeddedKubelet) -> None:
    """At whatever moment a session is cancelled, its server and its socket are gone once it has ended."""
    directory = PluginDirectory(kubelet.plugin_directory)
    resource = shared_memory(8)
    for turns in range(40):
        running_session = asyncio.create_task(Session(resource, directory).run())
        for _ in range(turns):
            await asyncio.sleep(0)
        running_session.cancel()
        await asyncio.wait([running_session])
        assert list(kubelet.plugin_directory.glob("gpushare-*.sock")) == [], f"cancelled after {turns} turns"
    directory.close()


async def test_sessions_may_come_before_the_kubelet(short_path: Path) -> None:
    """No directory, or no kubelet.sock in it, is waited out."""
    kubelet = EmbeddedKubelet(short_path)
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await asyncio.sleep(0)
        async with kubelet:
            await until_allocatable(kubelet)


async def test_a_stale_kubelet_socket_is_waited_out(kubelet: EmbeddedKubelet) -> None:
    """A kubelet that was killed leaves a dead socket behind; the next one is found."""
    await kubelet.stop(graceful=False)
    assert kubelet.socket.exists()
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await kubelet.start()
        await until_allocatable(kubelet)


async def test_a_refused_registration_is_tried_again(kubelet: EmbeddedKubelet) -> None:
    """The kubelet may refuse for a while; nothing but time is needed."""
    kubelet.refuse_registrations("not yet")
    async with running(kubelet.plugin_directory, shared_memory(8)) as (session,):
        await kubelet.wait_for(lambda node: len(node.registrations) >= 2)
        kubelet.accept_registrations()
        await until_allocatable(kubelet)
        await until(lambda: session.standing.registrations == 1)  # it learns of it after the kubelet
        standing = session.standing
    assert kubelet.registrations[0].error is not None
    assert (standing.registrations, standing.registration_failures) == (1, len(kubelet.registrations) - 1)


async def test_a_resource_that_is_refused_does_not_hold_the_others(kubelet: EmbeddedKubelet) -> None:
    """Each resource registers by itself: a name this kubelet does not take is no reason to lose another."""
    good, bad = shared_memory(8), replace(shared_memory(4), name="not an extended resource")
    async with running(kubelet.plugin_directory, bad, good):
        await until_allocatable(kubelet)
        await kubelet.wait_for(lambda node: any(each.error for each in node.registrations))


class Watched(PluginDirectory):
    """A plugin directory that counts how often a session has looked for the kubelet."""

    looks = 0

    def identity(self, name: str) -> Identity | None:
        """Count the look."""
        self.looks += name == KUBELET_SOCKET
        return super().identity(name)

    def has_looked_since(self, looks: int) -> bool:
        """Return whether a session has looked since there were so many looks."""
        return self.looks > looks


class Registrations(RegistrationServicer):
    """A kubelet that takes every registration, and opens no stream by itself."""

    def __init__(self) -> None:
        """Have taken none yet."""
        self.count = 0

    async def Register(  # noqa: N802 - the name on the wire
        self,
        request: RegisterRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext[RegisterRequest, Empty],  # noqa: ARG002
    ) -> Empty:
        """Take it."""
        self.count += 1
        return Empty()


async def test_a_kubelet_that_is_slow_to_open_its_stream_is_asked_once(short_path: Path) -> None:
    """Other sockets that come and go in the directory are no reason to register again while a stream may still come."""
    server, registrations = grpc.aio.server(), Registrations()
    add_RegistrationServicer_to_server(registrations, server)
    server.add_insecure_port(f"unix:{short_path / KUBELET_SOCKET}")
    await server.start()
    directory = Watched(short_path)
    session = Session(shared_memory(8), directory)
    tasks = [asyncio.create_task(work) for work in (directory.watch(), session.run())]
    await until(lambda: session.standing.registrations == 1)
    over = asyncio.get_running_loop().time() + 4 * Backoff().first
    while asyncio.get_running_loop().time() < over:
        before = directory.looks
        (short_path / "another.sock").touch()
        (short_path / "another.sock").unlink()
        await until(partial(directory.has_looked_since, before))
    assert registrations.count == 1
    async with grpc.aio.insecure_channel(f"unix:{short_path / session.socket_name}") as channel:
        stream = DevicePluginStub(channel).ListAndWatch(Empty())
        assert len((await anext(aiter(stream))).devices) == 8
        await until(lambda: session.registered)
    assert registrations.count == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    directory.close()
    await server.stop(None)


class Quick(PluginDirectory):
    """A plugin directory where somebody puts a socket in place of ours as soon as it is made, once."""

    times = 1

    def identity(self, name: str) -> Identity | None:
        """Put one there, where a session of ours looks at its socket."""
        path = self.path / name
        if name != KUBELET_SOCKET and self.times and path.exists():
            self.times -= 1
            path.unlink()
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        return super().identity(name)


async def test_a_socket_that_is_replaced_at_once_is_not_taken_for_ours(kubelet: EmbeddedKubelet) -> None:
    """However quickly somebody has another socket in place of ours, it is made again until the kubelet reaches it."""
    directory = Quick(kubelet.plugin_directory)
    session = Session(shared_memory(8), directory)
    tasks = [asyncio.create_task(work) for work in (directory.watch(), session.run())]
    await until_allocatable(kubelet)
    assert not directory.times
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    directory.close()


@pytest.mark.parametrize("graceful", [True, False])
async def test_a_kubelet_restart_leads_to_a_new_registration(kubelet: EmbeddedKubelet, *, graceful: bool) -> None:
    """The kubelet wipes every socket and makes its own anew; all units come back, and pods keep theirs."""
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await until_allocatable(kubelet)
        pod = Pod("pod", [Container("main", {GPU_MEM: 3})])
        await kubelet.admit(pod)
        held = kubelet.allocated(GPU_MEM)
        for _ in range(5):
            await kubelet.restart(graceful=graceful)
            await until_allocatable(kubelet)
        assert kubelet.allocated(GPU_MEM) == held


@pytest.mark.parametrize("graceful", [True, False])
async def test_a_kubelet_restart_that_is_mended_soon_is_one_line_and_no_warning(
    kubelet: EmbeddedKubelet, *, graceful: bool
) -> None:
    """What was mended within the grace period needs nobody: the line that all is well names what it was."""
    with logged() as events:
        async with running(kubelet.plugin_directory, shared_memory(8), grace=3600) as (session,):
            await until(lambda: session.registered)
            events.clear()
            await kubelet.restart(graceful=graceful)
            await until(lambda: session.registered)
            (told,) = [each for each in events if each["log_level"] != "debug"]
    assert (told["event"], told["log_level"], told["count"]) == ("resource_registered", "info", 8)
    assert "socket_removed" in told["reason"]


async def test_trouble_that_lasts_is_warned_of_once_each_time(kubelet: EmbeddedKubelet) -> None:
    """A kubelet that stays away is said once, however long; when it was back and is away again, once more."""
    away = "kubelet_missing"

    def warnings() -> int:
        return sum(each["event"] == away and each["log_level"] == "warning" for each in events)

    with logged() as events:
        async with running(kubelet.plugin_directory, shared_memory(8), grace=0.01):
            for times in (1, 2):
                while warnings() < times:  # all that was well for a moment only is still the same trouble
                    await until_allocatable(kubelet)
                    async with kubelet.away():
                        await asyncio.sleep(0.1)
                assert warnings() == times
                await until_allocatable(kubelet)


async def test_a_list_that_is_refused_again_and_again_is_warned_of(kubelet: EmbeddedKubelet) -> None:
    """Each registration succeeds, and yet nothing is well."""

    def warnings() -> list[str]:  # another test may hold all inotify instances
        return [
            each["event"]
            for each in events
            if each["log_level"] == "warning" and each["event"] != "inotify_unavailable"
        ]

    units = Units({a_gpu(0): replica_units(a_gpu(0), 80_000)})
    too_long = Resource("example.com/gpu", units, Replicas(), ReplicaGranter(Injection(Flags())))
    with logged() as events:
        async with running(kubelet.plugin_directory, too_long, grace=0.5):
            await until(warnings)
    assert warnings() == ["device_list_stream_ended"]


async def test_kubelet_restarts_in_quick_succession_lose_nothing(kubelet: EmbeddedKubelet) -> None:
    """A kubelet that starts wipes the directory, also while sockets are being made in it; nothing waits for that."""
    resources = [shared_memory(8, name=f"example.com/gpu-mem-{number}") for number in range(3)]
    async with running(kubelet.plugin_directory, *resources):
        for number in range(40):
            for _ in range(1 + number % 4):
                await kubelet.restart(graceful=bool(number % 2))
            for resource in resources:
                await until_allocatable(kubelet, resource=resource.name)


async def test_a_socket_wiped_while_it_is_made_is_made_again(kubelet: EmbeddedKubelet) -> None:
    """Whenever the wipe comes, the resource is served in the end."""
    async with running(kubelet.plugin_directory, shared_memory(8)) as (session,):
        path = kubelet.plugin_directory / session.socket_name
        for _ in range(200):
            path.unlink(missing_ok=True)
            await asyncio.sleep(0)
        known = len(kubelet.registrations)
        path.unlink(missing_ok=True)
        await kubelet.wait_for(lambda node: len(node.registrations) > known)
        await until_allocatable(kubelet)
        assert path.exists()


async def test_a_kubelet_that_hangs_does_not_hide_the_next(kubelet: EmbeddedKubelet) -> None:
    """A registration that gets no answer is given up as soon as another kubelet is there."""
    await kubelet.stop()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(kubelet.socket))
        deaf.listen()
        async with running(kubelet.plugin_directory, shared_memory(8)):
            deaf.setblocking(False)  # noqa: FBT003 - the socket module's own
            connection, _ = await asyncio.get_running_loop().sock_accept(deaf)
            with connection:
                await kubelet.start()
                await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)


async def test_a_deleted_socket_of_ours_is_made_again(kubelet: EmbeddedKubelet) -> None:
    """Somebody empties the directory; the resource is served and registered again."""
    async with running(kubelet.plugin_directory, shared_memory(8)) as (session,):
        await until_allocatable(kubelet)
        (kubelet.plugin_directory / session.socket_name).unlink()
        await kubelet.wait_for(lambda node: len(node.registrations) >= 2)
        await until_allocatable(kubelet)
        await kubelet.admit(Pod("pod", [Container("main", {GPU_MEM: 5})]))


async def test_a_socket_of_another_in_our_place_is_replaced(kubelet: EmbeddedKubelet) -> None:
    """A leftover of an earlier run, or anything else at our path, does not keep us from serving."""
    directory = PluginDirectory(kubelet.plugin_directory)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(kubelet.plugin_directory / socket_name(GPU_MEM, directory)))
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await until_allocatable(kubelet)


async def test_an_ended_stream_leads_to_a_new_registration(kubelet: EmbeddedKubelet) -> None:
    """A kubelet that stops listening, here because the list is longer than it takes, is asked again and again."""
    units = Units({a_gpu(0): replica_units(a_gpu(0), 80_000)})
    too_long = Resource("example.com/gpu", units, Replicas(), ReplicaGranter(Injection(Flags())))
    async with running(kubelet.plugin_directory, too_long, shared_memory(8)):
        await kubelet.wait_for(lambda node: len(node.disconnections) >= 3)
        await until_allocatable(kubelet)
    assert {lost.resource for lost in kubelet.disconnections} >= {"example.com/gpu"}


async def test_the_end_removes_the_sockets(kubelet: EmbeddedKubelet) -> None:
    """After a session ended nothing of it is left in the directory."""
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await until_allocatable(kubelet)
    assert {path.name for path in kubelet.plugin_directory.glob("*.sock")} == {"kubelet.sock"}


async def test_a_kubelet_that_is_away_for_long_is_waited_for(short_path: Path) -> None:
    """After minutes, in which the kubelet forgets the resource, all is as before, and the pod keeps its units."""
    offset = 0.0
    kubelet = EmbeddedKubelet(short_path, clock=lambda: time.monotonic() + offset)
    async with kubelet, running(kubelet.plugin_directory, shared_memory(8)):
        await until_allocatable(kubelet)
        await kubelet.admit(Pod("pod", [Container("main", {GPU_MEM: 3})]))
        held = kubelet.allocated(GPU_MEM)
        async with kubelet.away(graceful=False):
            offset = 3600.0
        await until_allocatable(kubelet)
        assert kubelet.allocated(GPU_MEM) == held


async def test_pods_that_ask_before_we_are_there_come_again(kubelet: EmbeddedKubelet) -> None:
    """After a reboot pods may be first: they fail with the kubelet's words, and fit once we registered."""
    pod = Pod("pod", [Container("main", {GPU_MEM: 3})])
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await until_allocatable(kubelet)
        await kubelet.admit(pod)
    await kubelet.restart()
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        await kubelet.admit(Pod("early", [Container("main", {GPU_MEM: 3})]))
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await until_allocatable(kubelet)
        await kubelet.admit(Pod("again", [Container("main", {GPU_MEM: 3})]))
        assert (await kubelet.admit(pod)).containers["main"].device_ids[GPU_MEM] < kubelet.allocated(GPU_MEM)


@contextlib.asynccontextmanager
async def running_without_inotify(directory: Path, resource: Resource) -> AsyncIterator[Session]:
    """Run a session that found no inotify instance left; other tests find none for a moment only.

    Another process may give one back when all have just been taken. Then this session finds one, and the next is tried.
    """
    unavailable = False
    while not unavailable:
        with logged() as events, contextlib.ExitStack() as taken:
            with contextlib.suppress(OSError):
                while True:
                    taken.enter_context(Inotify())
            async with running(directory, resource) as (session,):
                await until(lambda: session.registered or _without_inotify(events))
                if unavailable := _without_inotify(events):
                    taken.close()
                    yield session


def _without_inotify(events: Sequence[Mapping[str, Any]]) -> bool:
    return any(each["event"] == "inotify_unavailable" for each in events)


async def test_a_restarted_kubelet_is_found_without_inotify(kubelet: EmbeddedKubelet) -> None:
    """When all inotify instances of the user are taken, a restarted kubelet is found all the same."""
    async with running_without_inotify(kubelet.plugin_directory, shared_memory(8)):
        await until_allocatable(kubelet)
        await kubelet.stop(graceful=False)
        await kubelet.start()
        await until_allocatable(kubelet)


async def test_a_socket_that_came_and_went_between_two_looks_is_made_again(kubelet: EmbeddedKubelet) -> None:
    """Without inotify a look may find the directory as the look before did, and our socket is missing all the same."""
    async with running_without_inotify(kubelet.plugin_directory, shared_memory(8)) as session:
        await until(lambda: session.registered)
        (kubelet.plugin_directory / session.socket_name).unlink()
        await kubelet.wait_for(lambda node: len(node.registrations) >= 2)
        await until_allocatable(kubelet)


@pytest.fixture
def disk(short_path: Path) -> Iterator[Path]:
    """Mount a file system with room for few files."""
    folder = short_path / "disk"
    folder.mkdir()
    if _mount("-t", "tmpfs", "-o", "nr_inodes=32", "none", folder).returncode:
        pytest.skip("only root can mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S607 - where it is depends on the distribution


def _mount(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False)  # noqa: S607 - as above


async def test_a_full_disk_is_waited_out(disk: Path) -> None:
    """Where no socket can be made, the resource is served as soon as there is room again."""
    async with EmbeddedKubelet(disk, checkpoint=False) as kubelet:
        fillers = _fill(kubelet.plugin_directory)
        async with running(kubelet.plugin_directory, shared_memory(8)) as (session,):
            await until(lambda: session.attempts)
            for filler in fillers:
                filler.unlink()
            await until_allocatable(kubelet)


async def test_a_read_only_directory_is_waited_out(disk: Path) -> None:
    """A disk that was mounted read-only after an error serves again once it is writable."""
    async with EmbeddedKubelet(disk, checkpoint=False) as kubelet:
        _mount("-o", "remount,ro", disk)
        async with running(kubelet.plugin_directory, shared_memory(8)) as (session,):
            await until(lambda: session.attempts)
            _mount("-o", "remount,rw", disk)
            await until_allocatable(kubelet)


def _fill(directory: Path) -> list[Path]:
    """Make files until there is no room for another, and return them."""
    made: list[Path] = []
    with contextlib.suppress(OSError):
        while True:
            filler = directory / f"filler-{len(made)}"
            filler.touch()
            made.append(filler)
    return made


@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.symlink_to("elsewhere")])
async def test_a_pipe_or_a_link_in_the_locks_place_is_named_and_waited_out(
    kubelet: EmbeddedKubelet, make: Callable[[Path], None]
) -> None:
    """Pipe and link neither stop the daemon for good nor are touched; the warning says what is in the way."""
    file = kubelet.plugin_directory / LOCK_FILE
    make(file)
    with logged() as events:
        async with running(kubelet.plugin_directory, shared_memory(8), grace=0.01):
            await until(lambda: [each for each in events if str(file) in each.get("reason", "")])
            file.unlink()
            await until_allocatable(kubelet)


async def test_the_directory_may_be_replaced_as_a_whole(kubelet: EmbeddedKubelet) -> None:
    """Removed and made anew, the directory is watched again."""
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await until_allocatable(kubelet)
        await kubelet.stop()
        kubelet.plugin_directory.rename(kubelet.plugin_directory.with_name("old"))
        await kubelet.start()
        await until_allocatable(kubelet)


def test_a_directory_whose_path_is_too_long_is_refused(short_path: Path) -> None:
    """No socket could ever be made in it, so trying again would help nobody."""
    refuse_long_path(short_path)
    with pytest.raises(GpushareError, match="has 109 bytes; at most"):
        refuse_long_path(Path("/" + "d" * 108))


def test_socket_names_tell_the_resource_and_fit_the_limit() -> None:
    """Names are readable; those too long for a Unix socket are shortened and stay distinct."""
    directory = PluginDirectory(Path("/var/lib/kubelet/device-plugins"))
    assert socket_name(GPU_MEM, directory) == "gpushare-aliyun.com_gpu-mem.sock"
    names = {socket_name(f"{'a' * 63}.example.com/{'b' * 60}{end}", directory) for end in ("1", "2")}
    assert len(names) == 2
    assert all(len(str(directory.path / name)) <= LONGEST_SOCKET_PATH for name in names)
