"""Tests of `gpushare_plugin.node.news.events`: what happens on a node, as Events on the Node and its pods."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.directives import SCHEDULE
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect
from gpushare_plugin.core.gpu import FailedGpu
from gpushare_plugin.core.usage import ContainerUsage, Stowaway
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.events.event import Event, of_node, of_pod
from gpushare_plugin.kube.own_node.condition import condition
from gpushare_plugin.kubelet.allocations.trust import TrustDelays
from gpushare_plugin.node import daemon as app
from gpushare_plugin.node.news import news
from gpushare_plugin.node.news.events import NewsEvents
from gpushare_plugin.node.news.news import NewsItem
from gpushare_plugin.observe.events import OF_DAEMON
from gpushare_plugin.testing.cluster import ApiServer, granted
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.ports import claim_port
from tests.chart.rendering import objects
from tests.node.living import QUICK
from tests.node.refusals import refused_preference
from tests.nodes import Cards, a_gpu
from tests.nodes import a_node as gpus
from tests.process.daemon import answer, gpushare
from tests.unit.kube.cluster import NODE, a_node
from tests.unit.sharing.settings import GPU_MEM, memory, time_slicing
from tests.waiting import until

NODE_EVENTS = "/api/v1/namespaces/default/events"
SLICED = {"name": "nvidia.com/gpu", "replicas": 4}
UUID = a_gpu(0).uuid
OVER = ContainerUsage("team", "one", "main", "uid-1", UUID, GPU_MEM, 2, 2048 * MIB, 3072 * MIB)
FOREIGN = Stowaway(UUID, 4711, "python")

SILENT = {
    news.DriverSlow,
    news.GpusFound,
    news.GpusChanged,
    news.CdiDevicesNamed,
    news.GpuEventReported,
    news.ResourceRetired,
    news.PodDrifted,
    news.StowawayGone,
    news.UsageUnknown,
    news.UsageKnown,
    news.MpsRootKept,
    news.DraDriverWaits,
    news.MpsProtocolKept,
    news.ReloadRequested,
    news.Warned,
}
"""News that need no attention by themselves, or that the log alone has."""

TOLD: list[tuple[NewsItem, str, str]] = [
    (news.NoGpuYet("no driver"), "NoGpu", "no usable GPU: no driver"),
    (news.GpuLeftOut(FailedGpu(1, "no memory")), "GpuLeftOut", "GPU 1 is left out: no memory"),
    (news.GpuUnhealthy(UUID, "XID 56", until_reset=False), "GpuUnhealthy", f"{UUID}: unhealthy: XID 56"),
    (
        news.GpuUnhealthy(UUID, "XID 79", until_reset=True),
        "GpuUnhealthy",
        f"{UUID}: unhealthy: XID 79; it needs a reset",
    ),
    (news.GpuRecovered(UUID), "GpuHealthy", f"{UUID}: healthy again"),
    (news.GpuCordoned(UUID, "cordoned by x"), "GpuCordoned", f"{UUID}: cordoned by x"),
    (news.GpuUncordoned(UUID), "GpuUncordoned", f"{UUID}: no longer cordoned"),
    (news.GpuNotLimited(UUID, "x"), "DriverLimitsNotSet", f"{UUID}: cannot be allocated: x"),
    (
        news.GpuLimited(UUID),
        "DriverLimitsSet",
        f"{UUID}: driver limits no longer prevent allocation",
    ),
    (news.GpuNotServedByMps(UUID, "x"), "MpsNotServing", f"{UUID}: cannot be allocated because of MPS: x"),
    (news.GpuServedByMps(UUID), "MpsServing", f"{UUID}: MPS no longer prevents that it is allocated"),
    (news.GpuWaiting(UUID, "x"), "SharingModePending", f"{UUID}: not shared as configured yet: x"),
    (
        news.GpuModeChanged(UUID, "none"),
        "SharingModeChanged",
        f"{UUID}: shared as configured now, with isolation none",
    ),
    (news.GpuIsolationNotFirst(UUID, "none", "driver", "x"), "IsolationNotFirst", f"{UUID}: x"),
    (news.GpusGivenByClaim((UUID,)), "GpusGivenByClaim", f"{UUID}: given by claim"),
    (news.GpusLeftClaims((UUID,)), "GpusLeftClaims", f"{UUID}: no claim can have them"),
    (news.GpusNotOfferedToClaims("x"), "GpusNotOfferedToClaims", "claims do not get all GPUs that they should: x"),
    (news.GpusOfferedToClaims(8, again=True), "GpusOfferedToClaims", "claims get all GPUs that they should: 8 devices"),
    (news.RequestRejected("Allocate", "r", "r: x"), "AllocationRefused", "Allocate refused: r: x"),
    (news.ConfigChanged(("a: 1 -> 2", "b: 1")), "ConfigApplied", "another config is in effect: a: 1 -> 2; b: 1"),
    (news.ConfigRejected(("x", "y")), "ConfigRejected", "the previous config stays in effect: x; y"),
    (news.LabelConfigRejected(("x",)), "ConfigRejected", "the config that the node label names is not used: x"),
    (news.ConfigDoesNotFitGpus(("x",)), "ConfigDoesNotFitGpus", "GPUs stay shared as before: x"),
    (news.ConfigUnreadable("x"), "ConfigUnreadable", "the previous config stays in effect: x"),
    (news.ConfigReadable(), "ConfigValid", "the config can be read again"),
    (news.ConfigValidAgain(), "ConfigValid", "the config is valid again, and the same as the one in effect"),
    (news.StowawayFound(FOREIGN), "ForeignGpuProcess", "process 4711 (python) of the host uses"),
]

ESCAPED = replace(OVER, effect=not_in_effect("it escaped"))
LIMIT = f"limit of container main on {UUID} ({GPU_MEM}, 2048 MiB)"
OVERUSE = f"memory of {UUID} in use by container main: 3072 MiB, limit ({GPU_MEM}): 2048 MiB"
TOLD_OF_PODS: list[tuple[NewsItem, str, str]] = [
    (news.PodOverLimit(OVER), "GpuMemoryExceeded", OVERUSE),
    (news.PodWithinLimit(OVER), "GpuMemoryWithinLimit", f"{OVERUSE}; it is within its limit again"),
    (news.PodEvicted(OVER), "EvictedForGpuMemory", f"{OVERUSE}; the pod was evicted"),
    (
        news.PodEvicted(ESCAPED),
        "EvictedForGpuMemory",
        f"{OVERUSE} (not in effect: it escaped); the pod was evicted",
    ),
    (news.LimitNotInEffect(ESCAPED), "GpuLimitNotInEffect", f"{LIMIT}: not in effect: it escaped"),
    (news.LimitInEffect(replace(OVER, effect=IN_EFFECT)), "GpuLimitInEffect", f"{LIMIT}: in effect"),
    (
        news.LimitInEffect(replace(OVER, effect=Effect("in effect since", seconds=83.2))),
        "GpuLimitInEffect",
        f"{LIMIT}: in effect now, as set 83 s after the start of the container",
    ),
    (
        news.EvictionRefused(OVER, "x"),
        "GpuMemoryEvictionRefused",
        f"{OVERUSE}; the pod was not evicted: x",
    ),
    (
        news.StowawayFound(replace(FOREIGN, pod="team/one", pod_uid="uid-1", program="")),
        "ForeignGpuProcess",
        f"process 4711 uses {UUID} without units or a claim of it",
    ),
]


def events_of(*items: NewsItem) -> list[Event]:
    """Return the Events of news that come at the same time."""
    made: list[Event] = []
    flushes: list[Callable[[], None]] = []
    subscriber = NewsEvents(NODE, made.append, flushes.append)
    for item in items:
        subscriber.publish(item)
    for flush in flushes:
        flush()
    return made


def test_every_type_of_news_has_an_event_or_is_known_to_have_none() -> None:
    """Whoever adds news decides whether people who look at the Node need them."""
    registered = set(NewsEvents.__dict__["publish"].dispatcher.registry) - {object}
    assert registered | SILENT == set(get_args(NewsItem))
    assert not registered & SILENT


@pytest.mark.parametrize(("item", "reason", "message"), [*TOLD, *TOLD_OF_PODS])
def test_news_become_events_with_the_reason_of_their_kind(item: NewsItem, reason: str, message: str) -> None:
    """Each with the reason and the type of its kind, about the object that the kind is about."""
    (event,) = events_of(item)
    (kind,) = (kind for kind in OF_DAEMON if kind.reason == reason)
    assert event.message.startswith(message)
    assert (event.reason, event.type, event.action) == (reason, kind.type, kind.action)
    about_pod = (item, reason, message) in TOLD_OF_PODS
    assert event.regarding == (of_pod("team", "one", "uid-1") if about_pod else of_node(NODE))
    assert ("Pod" if about_pod else "Node") in kind.about


def test_every_kind_is_made_of_some_news() -> None:
    """The list of Events of the daemon names none that cannot happen."""
    assert {kind.reason for kind in OF_DAEMON} == {reason for _, reason, _ in (*TOLD, *TOLD_OF_PODS)}


def test_news_without_an_event_make_none() -> None:
    """They are for the log."""
    assert events_of(news.ReloadRequested()) == []
    assert events_of(news.GpusOfferedToClaims(8, again=False)) == []


def test_equal_news_of_many_gpus_are_one_event() -> None:
    """A driver that hangs, or another config, concerns all GPUs of a node; another reason is another Event."""
    same = [news.GpuUnhealthy(f"GPU-{number}", "the driver hangs", until_reset=False) for number in range(8)]
    other = news.GpuUnhealthy("GPU-8", "XID 79", until_reset=True)
    assert [event.message for event in events_of(*same, other, news.GpuRecovered("GPU-1"))] == [
        "GPU-0, GPU-1, GPU-2, GPU-3 and 4 more: unhealthy: the driver hangs",
        "GPU-8: unhealthy: XID 79; it needs a reset",
        "GPU-1: healthy again",
    ]


class Eventful:
    """A daemon with Events, its GPUs, its config file and its API server."""

    def __init__(self, server: ApiServer, kubelet: EmbeddedKubelet, folder: Path) -> None:
        """Have one GPU."""
        self.server = server
        self.cards = Cards(gpus(8192))
        self._file = folder / "config.yaml"
        self._mps = folder / "mps"
        self.port = claim_port()
        self.daemon = app.Daemon(
            Configs(file=self._file),
            lambda _: self.cards,
            kubelet.plugin_directory,
            kubelet.pod_resources_socket,
            membership=app.Membership(
                NODE, server.kubeconfig(folder / "kubeconfig"), cordon_configmap=False, events=True
            ),
            http_address=f"127.0.0.1:{self.port}",
            trust_delays=TrustDelays(unknown=0),
            clock=lambda: 2000 * time.monotonic(),
        )

    def configure(self, **sections: Any) -> None:
        """Replace the config file."""
        new = self._file.with_suffix(".new")
        config = {"version": "v1", "flags": {"mpsRoot": str(self._mps)}, "health": QUICK, **sections}
        new.write_text(yaml.safe_dump(config))
        new.replace(self._file)

    @contextlib.asynccontextmanager
    async def running(self, **sharing: Any) -> AsyncIterator[None]:
        """Run the daemon, first with GPUs shared by memory."""
        self.configure(sharing=memory(**sharing))
        task = asyncio.create_task(app.serve(self.daemon))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def events(self) -> list[tuple[str, str]]:
        """Return the reason and the message of each Event of the Node."""
        return [(each["reason"], each["message"]) for each in self.server.store.find(NODE_EVENTS)]

    async def counts(self, reason: str, count: int) -> None:
        """Wait until an Event has happened so often."""
        found: list[Any] = []

        def counted() -> bool:
            found[:] = self.server.store.find(NODE_EVENTS)
            return any((each["reason"], each["count"]) == (reason, count) for each in found)

        await until(counted, lambda: f"{found}; {self.server.asked[-5:]}")

    async def tells(self, reason: str, words: str = "") -> None:
        """Wait for an Event."""
        await until(
            lambda: any(found == reason and words in message for found, message in self.events()),
            lambda: str(self.events()),
        )


@pytest.fixture
async def eventful(kubelet: EmbeddedKubelet, short_path: Path) -> AsyncIterator[Eventful]:
    """Return such a daemon with the rights of the chart, which is not running yet."""
    async with ApiServer(granted(objects({"cluster": {"events": True}}), "gpushare")) as server:
        a_node(server)
        yield Eventful(server, kubelet, short_path)


async def test_a_fault_and_its_end_show_on_the_node(eventful: Eventful, kubelet: EmbeddedKubelet) -> None:
    """An Event for each, whose count is raised when it happens again."""
    well = eventful.cards.inventory
    lost = replace(well, cards=(), failed=(FailedGpu(0, "GPU is lost", UUID, lost=True),))
    async with eventful.running():
        assert "\ngpushare_events_dropped_total 0.0\n" in (await answer(eventful.port, "/metrics"))[1]
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        eventful.cards.inventory = lost
        await eventful.tells("GpuUnhealthy", "GPU is lost")
        eventful.cards.inventory = well
        await eventful.tells("GpuHealthy")
        eventful.cards.inventory = lost
        await eventful.counts("GpuUnhealthy", 2)


async def test_a_change_of_the_sharing_mode_shows_on_the_node(eventful: Eventful, kubelet: EmbeddedKubelet) -> None:
    """What was rejected and refused, what changed, and what waits."""
    async with eventful.running():
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        eventful.configure(sharing=memory(), flags={"migStrategy": "sometimes"})
        await eventful.tells("ConfigRejected", "sometimes")
        await refused_preference(kubelet.plugin_directory / kubelet.registrations[0].endpoint, 9)
        await eventful.tells("AllocationRefused", "but no single GPU has as many free")
        await kubelet.admit(Pod("pod", [Container("main", {GPU_MEM: 3})]))
        eventful.configure(sharing=time_slicing(SLICED))
        await eventful.tells("ConfigApplied")
        await eventful.tells("SharingModePending", f"{UUID}: not shared as configured yet")


async def test_mps_that_does_not_run_shows_on_the_node(eventful: Eventful, kubelet: EmbeddedKubelet) -> None:
    """A label of ACK puts GPUs under MPS: while nothing serves it, Event, condition and list say what starts it."""
    eventful.server.store.update(NODES, NODE, {("metadata", "labels", SCHEDULE): "mps"}, "admin")
    remedy = "in the chart, mps.enabled: true starts it"

    def unserved() -> bool:
        found = condition(eventful.server.store.find(NODES, NODE)[0])
        return found is not None and found["reason"] == "MpsNotServing" and remedy in found["message"]

    async with eventful.running():
        await eventful.tells("MpsNotServing", remedy)
        await until(unserved, lambda: str(eventful.server.store.find(NODES, NODE)[0].get("status")))
        listed = await gpushare("list", "--device-plugin-path", kubelet.plugin_directory)
        assert remedy in " ".join(listed.output.split())
