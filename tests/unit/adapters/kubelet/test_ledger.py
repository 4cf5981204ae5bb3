"""Tests of `gpushare_plugin.adapters.kubelet.allocations.ledger`: when it is believed that nobody holds a unit."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare_plugin.adapters.kubelet.allocations.checkpoint import CHECKPOINT
from gpushare_plugin.adapters.kubelet.allocations.ledger import Ledger, Patience
from gpushare_plugin.adapters.kubelet.api import podresources_pb2 as api
from gpushare_plugin.adapters.kubelet.device_plugin.directory import KUBELET_SOCKET, PluginDirectory
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.unit.adapters.kubelet.serving import running, shared_memory
from tests.unit.adapters.kubelet.test_pod_resources import answering

GPU_MEM = "aliyun.com/gpu-mem"
OWN = ("kube-system", "gpushare-abcde")
PATIENCE = Patience(own_pod_shown=5.0, unknown=60.0)


@dataclass
class Clock:
    """A clock in the hands of a test, in seconds."""

    now: float = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
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


def made_by(directory: Path) -> PluginDirectory:
    """Return a plugin directory where some kubelet made its socket."""
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / KUBELET_SOCKET))
    return PluginDirectory(directory)


async def test_a_kubelet_that_was_there_for_long_is_believed(kubelet: EmbeddedKubelet, clock: Clock) -> None:
    """It is the time since we first saw it that counts, on a clock nobody can set."""
    ledger = Ledger(
        PluginDirectory(kubelet.plugin_directory), kubelet.pod_resources_socket, patience=PATIENCE, clock=clock
    )
    async with holding(kubelet) as ids:
        assert await ledger.held() is None
        clock.now += 59
        assert await ledger.held() is None
        clock.now += 1
        assert await ledger.held() == dict.fromkeys(ids, "team/pod")


@pytest.mark.parametrize("graceful", [True, False])
async def test_a_kubelet_that_restarted_is_believed_later(
    kubelet: EmbeddedKubelet,
    clock: Clock,
    graceful: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """A new kubelet does not know its pods at first, so its empty account says nothing."""
    ledger = Ledger(
        PluginDirectory(kubelet.plugin_directory), kubelet.pod_resources_socket, patience=PATIENCE, clock=clock
    )
    clock.now += 60
    assert await ledger.held() == {}
    await kubelet.restart(graceful=graceful)
    assert await ledger.held() is None
    clock.now += 59
    assert await ledger.held() is None
    clock.now += 1
    assert await ledger.held() == {}


async def test_a_new_pod_resources_socket_beside_an_old_plugin_socket_is_not_believed(
    short_path: Path, clock: Clock
) -> None:
    """The younger of the two sockets tells how old the kubelet is that answers."""
    directory = made_by(short_path / "plugins")
    async with answering(short_path) as pod_resources:
        ledger = Ledger(directory, pod_resources, patience=PATIENCE, clock=clock)
        clock.now += 60
        assert await ledger.held() == {}
    async with answering(short_path) as pod_resources:
        assert await ledger.held() is None
        clock.now += 60
        assert await ledger.held() == {}


async def test_a_kubelet_that_shows_our_own_pod_is_believed_soon(short_path: Path, clock: Clock) -> None:
    """It has reached the API server; without that, no time is long enough."""
    directory = made_by(short_path / "plugins")
    ours = api.PodResources(namespace=OWN[0], name=OWN[1])
    async with answering(short_path, api.PodResources(namespace="kube-system", name="static")) as pod_resources:
        ledger = Ledger(directory, pod_resources, own_pod=OWN, patience=PATIENCE, clock=clock)
        clock.now += 3600
        assert await ledger.held() is None
    async with answering(short_path, ours) as pod_resources:
        assert await ledger.held() is None  # another kubelet
        assert await ledger.held() is None
        clock.now += 5
        assert await ledger.held() == {}


async def test_no_kubelet_no_account(short_path: Path, clock: Clock) -> None:
    """A socket that does not answer tells nothing, however long it does not."""
    ledger = Ledger(PluginDirectory(short_path), short_path / "none.sock", patience=PATIENCE, clock=clock)
    clock.now += 3600
    assert await ledger.held() is None


async def test_what_is_held_from_before_comes_from_the_checkpoint_or_else_from_the_kubelet(
    kubelet: EmbeddedKubelet, clock: Clock
) -> None:
    """The record is believed at once; without it nothing is known until the kubelet can be believed."""
    ledger = Ledger(
        PluginDirectory(kubelet.plugin_directory), kubelet.pod_resources_socket, patience=PATIENCE, clock=clock
    )
    async with holding(kubelet) as ids:
        expected = frozenset((GPU_MEM, id_) for id_ in ids)
        assert await ledger.before() == expected
        (kubelet.plugin_directory / CHECKPOINT).write_text("nonsense")
        assert await ledger.before() is None
        clock.now += 60
        assert await ledger.before() == expected
    await kubelet.stop()
    assert await ledger.before() is None


async def test_a_missing_directory_tells_nothing(short_path: Path, clock: Clock) -> None:
    """Where the kubelet's directory is not mounted yet, it is not known what pods hold, even after hours."""
    ledger = Ledger(PluginDirectory(short_path / "none"), short_path / "none.sock", patience=PATIENCE, clock=clock)
    assert await ledger.before() is None
    clock.now += 3600
    assert await ledger.before() is None
