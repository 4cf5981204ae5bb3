"""Tests of `gpushare_plugin.node.pods.usage` and `evictions`, with an embedded kubelet and made-up samples."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushare_plugin.base.errors import ConfigError, EvictionError
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.config.schema.sections import Config, Overuse
from gpushare_plugin.core.attribution import NO_HOLDINGS
from gpushare_plugin.core.holding import Holdings
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import HOST, GpuUsage, Owner, Process
from gpushare_plugin.kubelet.allocations.reader import READ_EVERY, HoldingsReader
from gpushare_plugin.mps.exchange import MpsStatus
from gpushare_plugin.node.news.news import (
    EvictionRefused,
    News,
    NewsItem,
    PodEvicted,
    PodOverLimit,
    PodWithinLimit,
    StowawayFound,
    StowawayGone,
    UsageKnown,
    UsageUnknown,
)
from gpushare_plugin.node.pods import usage as tracking
from gpushare_plugin.node.pods.evictions import ENDED_WITHIN
from gpushare_plugin.node.pods.proof import Proof
from gpushare_plugin.node.pods.usage import UsageTracker
from gpushare_plugin.testing.kubelet import AdmittedPod, Container, EmbeddedKubelet, Pod
from tests.nodes import Cards
from tests.snapshots import snapshot
from tests.unit.kubelet.serving import running
from tests.unit.sharing.settings import GPU_MEM, memory
from tests.waiting import until

GIB = 1024 * MIB
REPORT, EVICT = Overuse(), Overuse(action="evict", grace_seconds=60)
MADE = snapshot(memory(), 8192)


@dataclass
class Watch:
    """A tracker whose GPUs, clock and API server are in the hands of a test.

    `evicted` are the pods that the API server was asked to evict, `refusal` is what it answers, None for success.
    """

    kubelet: EmbeddedKubelet
    cards: Cards = field(default_factory=lambda: Cards(MADE.inventory))
    heard: list[NewsItem] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    refusal: EvictionError | None = None
    gone: bool = False
    now: float = 1000.0
    container_ids: dict[tuple[str, str, str], str] = field(default_factory=dict)
    mps: MpsStatus = field(default_factory=MpsStatus)
    procfs: Path = Path("/proc")

    def __post_init__(self) -> None:
        """Make the tracker."""
        news = News(self.heard.append)
        self.holdings = HoldingsReader(self.kubelet.plugin_directory, self.kubelet.pod_resources_socket, self.clock)
        proof = Proof(self.holdings, self.cards, lambda: self.mps, procfs=self.procfs)
        self.tracker = UsageTracker(self.cards, self.holdings, proof, news, self.evict, self.clock)

    def clock(self) -> float:
        """Tell the time."""
        return self.now

    async def evict(self, namespace: str, pod: str, uid: str) -> bool:
        """Do as the API server."""
        assert uid
        self.evicted.append(f"{namespace}/{pod}")
        if self.refusal is not None:
            raise self.refusal
        return not self.gone

    async def look(self, *processes: Process, overuse: Overuse = REPORT, unknown: str | None = None) -> list[NewsItem]:
        """Look at a GPU with these processes, and return what that is news of; a look takes 10 seconds."""
        self.heard.clear()
        self.now += 10
        gpu = MADE.inventory.gpus[0]
        self.cards.samples = (GpuUsage(gpu.uuid, 8 * GIB, GIB, 0.5, None if unknown else processes, unknown),)
        await self.tracker.look(MADE, overuse, self.container_ids)
        return list(self.heard)

    @property
    def used(self) -> Mapping[str, int | None]:
        """GiB in use by pod and container."""
        assert self.tracker.usage is not None
        return {
            f"{each.pod}/{each.container}": None if each.used is None else each.used // GIB
            for each in self.tracker.usage.containers
        }


@pytest.fixture
async def watch(kubelet: EmbeddedKubelet) -> AsyncIterator[Watch]:
    """Watch a node with 8 GiB to share."""
    async with serving(kubelet):
        yield Watch(kubelet)


@asynccontextmanager
async def serving(kubelet: EmbeddedKubelet) -> AsyncIterator[None]:
    """Offer the memory of the GPU to the kubelet."""
    async with running(kubelet.plugin_directory, MADE.resources[0]):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        yield


async def a_pod(watch: Watch, name: str, *units: int, init: int = 0) -> AdmittedPod:
    """Start a pod whose containers c0, c1 … hold so many units."""
    containers = [Container(f"c{number}", {GPU_MEM: each}) for number, each in enumerate(units)]
    return await watch.kubelet.admit(Pod(name, containers, [Container("i0", {GPU_MEM: init})] if init else []))


def using(pid: int, pod: AdmittedPod | None, gib: int, container: str = "") -> Process:
    """Return a process of a pod, perhaps of a container whose ID is known, or of the host."""
    owner = HOST if pod is None else Owner(pod.pod.uid, container)
    return Process(pid, "python", gib * GIB, 0.5, owner)


def kinds(news: list[NewsItem]) -> list[type]:
    """Return of which types news are."""
    return [type(item) for item in news]


class TestHoldings:
    """What containers hold, with UIDs."""

    async def test_names_and_uids_are_brought_together(self, watch: Watch) -> None:
        """The kubelet's two records are one: names, and the UID of the pod."""
        pod = await a_pod(watch, "a", 2, 1)
        found = {each.container: (each.namespace, each.pod, each.uid, len(each.ids)) for each in await held(watch)}
        assert found == {"c0": ("default", "a", pod.pod.uid, 2), "c1": ("default", "a", pod.pod.uid, 1)}

    async def test_holdings_that_have_not_changed_are_not_read_again(self, watch: Watch) -> None:
        """Between allocations the kubelet is asked once a minute, though containers are looked at more often."""
        await a_pod(watch, "a", 1)
        first = await held(watch)
        assert await held(watch) is first
        await a_pod(watch, "b", 1)
        # The kubelet may still be allocating, and must not be asked then.
        assert await held(watch) is first
        await a_pod(watch, "c", 1)
        assert await held(watch) is first
        second = await held(watch)
        assert {each.pod for each in second} == {"a", "b", "c"}
        assert await held(watch) is second
        watch.now += READ_EVERY
        assert await held(watch) is not second

    async def test_usage_is_unknown_without_the_kubelet(self, watch: Watch) -> None:
        """A kubelet that does not answer is no kubelet without pods."""
        await a_pod(watch, "a", 1)
        await held(watch)
        await watch.kubelet.stop()
        watch.now += READ_EVERY
        assert await watch.holdings.read() is None


class TestLooks:
    """What a look finds."""

    async def test_the_pod_that_uses_a_gpu_is_named(self, watch: Watch) -> None:
        """Processes are those of the pod whose UID their cgroup has; a pod without processes uses nothing."""
        first, _ = await a_pod(watch, "a", 2), await a_pod(watch, "b", 1)
        assert watch.tracker.usage is None
        assert await watch.look(using(1, first, 1), using(2, first, 1)) == []
        assert watch.used == {"a/c0": 2, "b/c0": 0}

    async def test_a_look_at_the_usage_has_an_age(self, watch: Watch) -> None:
        """A reader of the usage knows how old it is; nobody waits for a new look."""
        await watch.look()
        watch.now += 7
        assert watch.tracker.usage is not None
        assert watch.tracker.usage.age == 7

    async def test_containers_are_told_apart_where_pods_are_followed(self, watch: Watch) -> None:
        """With the IDs of containers each has its own; without them the pod has both."""
        pod = await a_pod(watch, "a", 2, 1)
        processes = using(1, pod, 1, "id-0"), using(2, pod, 2, "id-1")
        await watch.look(*processes)
        assert watch.used == {"a/": 3}
        watch.container_ids = {("default", "a", "c0"): "id-0", ("default", "a", "c1"): "id-1"}
        await watch.look(*processes)
        assert watch.used == {"a/c0": 1, "a/c1": 2}

    async def test_the_units_of_an_init_container_are_counted_once(self, watch: Watch) -> None:
        """The main container has the units of the init container that ended; both are one row."""
        pod = await a_pod(watch, "a", 3, init=3)
        await watch.look(using(1, pod, 2))
        assert watch.used == {"a/c0": 2}

    async def test_a_driver_that_fails_leaves_the_last_look(self, watch: Watch) -> None:
        """What was known stays, and gets older."""
        pod = await a_pod(watch, "a", 2)
        await watch.look(using(1, pod, 1))
        watch.cards.trouble = ConfigError(["broken"])
        watch.now += 10
        await watch.tracker.look(MADE, REPORT, {})
        assert watch.used == {"a/c0": 1}
        assert watch.tracker.usage is not None
        assert watch.tracker.usage.age == 10

    async def test_the_reason_of_unknown_usage_is_told_once(self, watch: Watch) -> None:
        """Without the host's process IDs the reason is news, and that it is known again."""
        news = [await watch.look(unknown=reason) for reason in (None, "no host PIDs", "no host PIDs", None)]
        assert news == [[], [UsageUnknown("no host PIDs")], [], [UsageKnown()]]

    async def test_a_kubelet_that_shows_nothing_is_news_when_that_lasts(self, watch: Watch) -> None:
        """The log has the reason that `gpushare_gpu_usage_known` promises; a kubelet that restarts is none."""
        await a_pod(watch, "a", 2)
        await watch.look()
        async with watch.kubelet.away():
            watch.now += READ_EVERY
            assert [await watch.look() for _ in range(3)] == [[], [UsageUnknown(NO_HOLDINGS)], []]
        assert await watch.look() == [UsageKnown()]

    async def test_looks_at_the_usage_follow_at_intervals(self, watch: Watch) -> None:
        """The daemon looks at intervals, each time at the node as it is then."""
        gpu = MADE.inventory.gpus[0]
        watch.cards.samples = (GpuUsage(gpu.uuid),)
        asked: list[Snapshot] = []

        def node() -> Snapshot:
            asked.append(MADE)
            return MADE

        running_on = asyncio.create_task(watch.tracker.run(node, Config))
        await until(lambda: watch.tracker.usage is not None)
        running_on.cancel()
        assert asked == [MADE]


class TestStowaways:
    """Processes that are out of place."""

    async def test_stowaways_are_news_when_they_last(self, watch: Watch) -> None:
        """A process is out of place at the second look that shows it, once, and gone at the first that does not."""
        stranger = using(7, None, 1)
        news = [await watch.look(*processes) for processes in ([stranger], [stranger], [using(7, None, 2)], [])]
        assert [kinds(each) for each in news] == [[], [StowawayFound], [], [StowawayGone]]
        (found,) = news[1]
        assert isinstance(found, StowawayFound)
        assert (found.process.pid, found.process.whose, found.process.memory) == (7, "the host", GIB)

    async def test_a_pod_that_just_began_is_no_stowaway(self, watch: Watch) -> None:
        """The pod is seen one look later; its processes are not out of place meanwhile."""
        await watch.look()
        late = await a_pod(watch, "late", 1)
        assert await watch.look(using(1, late, 1)) == []
        assert watch.used == {}
        assert await watch.look(using(1, late, 1)) == []
        assert watch.used == {"late/c0": 1}

    async def test_pods_that_begin_one_after_another_are_no_stowaways(self, watch: Watch) -> None:
        """The kubelet is not asked while it allocates, however many looks show processes of unknown pods."""
        stranger = Process(99, "miner", GIB, owner=Owner("uid-of-another-pod"))
        await watch.look()
        processes: list[Process] = []
        for number in range(4):
            processes.append(using(number, await a_pod(watch, f"pod-{number}", 1), 1))
            assert await watch.look(*processes, stranger) == []
            assert watch.used == {}
        assert await watch.look(*processes, stranger) == []
        assert watch.used == {f"pod-{number}/c0": 1 for number in range(4)}
        assert kinds(await watch.look(*processes, stranger)) == [StowawayFound]

    async def test_a_pod_that_is_ending_is_no_stowaway(self, watch: Watch) -> None:
        """Processes of a pod that the kubelet shows no more have a moment to end."""
        pod = await a_pod(watch, "a", 1)
        await watch.look(using(1, pod, 1))
        watch.kubelet.delete(pod.pod)
        watch.now += READ_EVERY
        assert await watch.look(using(1, pod, 1)) == []
        assert await watch.look() == []

    async def test_stowaways_that_are_told_are_bounded_in_number(self, watch: Watch) -> None:
        """A program that starts thousands of processes does not fill the log; the metric counts all of them."""
        crowd = [using(pid, None, 0) for pid in range(1, tracking.MOST_STOWAWAYS + 100)]
        await watch.look(*crowd)
        assert len(await watch.look(*crowd)) == tracking.MOST_STOWAWAYS
        assert watch.tracker.usage is not None
        assert len(watch.tracker.usage.stowaways) == len(crowd)
        assert await watch.look(*crowd) == []


class TestOveruse:
    """Pods that use more than they hold."""

    async def test_an_episode_is_news_twice(self, watch: Watch) -> None:
        """However long it lasts, it begins once and ends once; by default nobody is evicted."""
        pod = await a_pod(watch, "a", 2)
        looks = [await watch.look(using(1, pod, gib)) for gib in (2, 4, 5, 4, 1, 1)]
        assert [kinds(each) for each in looks] == [[], [PodOverLimit], [], [], [PodWithinLimit], []]
        assert watch.evicted == []

    async def test_an_episode_goes_on_while_the_kubelet_is_away(self, watch: Watch) -> None:
        """While it is not known who holds what, an episode neither ends nor begins again."""
        pod = await a_pod(watch, "a", 2)
        await watch.look(using(1, pod, 4))
        async with watch.kubelet.away():
            watch.now += READ_EVERY
            assert await watch.look(using(1, pod, 4)) == []
        assert await watch.look(using(1, pod, 4)) == []

    async def test_a_pod_is_evicted_once_after_the_grace_period(self, watch: Watch) -> None:
        """Only the pod that is over its limit goes, when the grace period is over, and once."""
        pod, other = await a_pod(watch, "a", 2), await a_pod(watch, "b", 2)
        processes = using(1, pod, 4), using(2, other, 2), using(3, None, 8)
        looks = [await watch.look(*processes, overuse=EVICT) for _ in range(10)]
        assert watch.evicted == ["default/a"]
        assert [number for number, news in enumerate(looks) if PodEvicted in kinds(news)] == [6]

    async def test_the_next_pod_to_evict_waits_until_the_first_is_gone(self, watch: Watch) -> None:
        """One pod goes at a time: what it frees may be enough."""
        pods = [await a_pod(watch, name, 1) for name in ("a", "b")]
        processes = [using(1, pods[0], 3), using(2, pods[1], 4)]
        for _ in range(10):
            await watch.look(*processes, overuse=EVICT)
        assert watch.evicted == ["default/b"]
        watch.kubelet.delete(pods[1].pod)
        watch.now += READ_EVERY
        await watch.look(processes[0], overuse=EVICT)
        assert watch.evicted == ["default/b", "default/a"]

    async def test_a_refused_eviction_is_told_once_and_tried_again(self, watch: Watch) -> None:
        """A budget that forbids the eviction is reported; the pod goes as soon as it allows it."""
        pod = await a_pod(watch, "a", 2)
        watch.refusal = EvictionError("a budget forbids it", 30)
        looks = [await watch.look(using(1, pod, 4), overuse=EVICT) for _ in range(11)]
        refused = [item for news in looks for item in news if isinstance(item, EvictionRefused)]
        assert [(item.usage.label, item.reason) for item in refused] == [("default/a", "a budget forbids it")]
        assert watch.evicted == ["default/a"] * 2
        watch.refusal = None
        looks = [await watch.look(using(1, pod, 4), overuse=EVICT) for _ in range(5)]
        assert watch.evicted == ["default/a"] * 3
        assert sum(PodEvicted in kinds(news) for news in looks) == 1

    async def test_a_pod_that_is_gone_already_is_no_news(self, watch: Watch) -> None:
        """A pod that ended by itself was not evicted."""
        pod = await a_pod(watch, "a", 2)
        watch.gone = True
        looks = [await watch.look(using(1, pod, 4), overuse=EVICT) for _ in range(10)]
        assert watch.evicted == ["default/a"]
        assert [kinds(news) for news in looks if news] == [[PodOverLimit]]

    async def test_a_pod_that_the_api_server_does_not_have_holds_up_no_other(self, watch: Watch) -> None:
        """A static pod has another UID there, so it stays: that is reported once, and the next one goes."""
        static, other = await a_pod(watch, "static", 1), await a_pod(watch, "other", 1)
        processes = using(1, static, 4), using(2, other, 3)
        watch.gone = True
        await watch.look(*processes, overuse=EVICT)
        watch.now += EVICT.grace_seconds
        assert kinds(await watch.look(*processes, overuse=EVICT)) == []
        watch.now += ENDED_WITHIN - 20
        assert kinds(await watch.look(*processes, overuse=EVICT)) == []
        watch.gone = False
        assert kinds(await watch.look(*processes, overuse=EVICT)) == [EvictionRefused, PodEvicted]
        assert kinds(await watch.look(*processes, overuse=EVICT)) == []
        assert watch.evicted == ["default/static", "default/other"]

    async def test_every_episode_of_a_static_pod_is_reported_once(self, watch: Watch) -> None:
        """Over its limit again, a static pod has the grace period again; within it, it holds up nobody either."""
        static, other = await a_pod(watch, "static", 1), await a_pod(watch, "other", 1)
        watch.gone = True
        for _ in range(2):
            looks = []
            for pause in (0.0, EVICT.grace_seconds, ENDED_WITHIN, 0.0):
                watch.now += pause
                looks += await watch.look(using(1, static, 4), overuse=EVICT)
            assert kinds(looks) == [PodOverLimit, EvictionRefused]
            assert kinds(await watch.look(using(1, static, 1), overuse=EVICT)) == [PodWithinLimit]
        assert kinds(await watch.look(using(1, static, 4), overuse=EVICT)) == [PodOverLimit]
        watch.gone = False
        await watch.look(using(2, other, 3), overuse=EVICT)
        watch.now += EVICT.grace_seconds
        assert kinds(await watch.look(using(2, other, 3), overuse=EVICT)) == [PodEvicted]
        assert watch.evicted == ["default/static", "default/other"]

    async def test_stowaways_are_never_evicted(self, watch: Watch) -> None:
        """A pod that holds nothing of ours is reported only."""
        stranger = Process(1, "miner", 8 * GIB, 1.0, Owner("7b0f9c3a-1b2c-4d5e-8f90-123456789abc", "id"))
        for _ in range(10):
            await watch.look(stranger, overuse=EVICT)
        assert watch.evicted == []
        assert watch.tracker.usage is not None
        assert [each.memory for each in watch.tracker.usage.stowaways] == [8 * GIB]


async def held(watch: Watch) -> Holdings:
    """Return what containers hold."""
    found = await watch.holdings.read()
    assert found is not None
    return found
