"""Tests of a node whose MIG instances are made as wanted: daemon, `gpushare mig`, a stand-in for NVML, a kubelet."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.gpus.nvml.partitions import NvmlPartitions
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kubelet.allocations.trust import TrustDelays
from gpushare_plugin.ledger.node_record import GpuRecord, NodeRecord
from gpushare_plugin.mig.exchange import MigRoot
from gpushare_plugin.mig.reconciler import MigPace
from gpushare_plugin.mig.service import serve
from gpushare_plugin.node import daemon as app
from gpushare_plugin.slices.wanted import WANTED_SLICES, SliceCounts, Wanted, encode
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu, FakeMigInstance, FakeNvml, FakeProcess
from tests.node.living import gone
from tests.node.partitioned import published_record
from tests.unit.gpus.conftest import Node as Describe
from tests.unit.gpus.conftest import describe
from tests.unit.kube.cluster import NODE, a_node, annotate, label
from tests.unit.mig.test_work import STEPS as CALLS
from tests.unit.partitioner.partitioners import PODS, ROOM, messages, partitioner
from tests.waiting import until

__all__ = ["describe"]

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-{}"
MANAGE = "partitioning: {migMode: manage}"
PACE = MigPace(look=0.01, ask=0.05, first=0.02, most=0.05)


class Eventless(NvmlSource):
    """The GPUs of a node without their events: the thread that waits for these would outlive the test."""

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Return at once."""


class MigNode:
    """A node with the label of nos, whose card is divided as a test, or a partitioner, wants."""

    def __init__(self, server: ApiServer, kubelet: EmbeddedKubelet, folder: Path, nvml: FakeNvml) -> None:
        """Run nothing before `start`."""
        self.server, self.kubelet, self.folder, self.nvml = server, kubelet, folder, nvml
        self.uuid = nvml.gpus[0].uuid
        self.root = MigRoot(folder / "mig")
        self._kubeconfig = server.kubeconfig(folder / "kubeconfig")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.file = folder / "config.yaml"
        self.configure()
        self.clock: Callable[[], float] = lambda: 2000 * time.monotonic()
        a_node(server)
        label(server, PARTITIONING, "mig")
        server.store.update(NODES, NODE, {("status", "allocatable"): ROOM})

    def configure(self, rest: str = "") -> None:
        """Replace the config file."""
        new = self.file.with_suffix(".new")
        new.write_text(f"health: {{goodProbes: 1, probeSeconds: 0.01}}\n{rest}\n")
        new.replace(self.file)

    def start(self) -> None:
        """Start the daemon."""
        daemon = app.Daemon(
            Configs(file=self.file),
            lambda _: Eventless(self.folder / "driver-root", self.folder / "sys"),
            self.kubelet.plugin_directory,
            self.kubelet.pod_resources_socket,
            membership=app.Membership(NODE, self._kubeconfig, cordon_configmap=False),
            trust_delays=TrustDelays(unknown=0),
            partitioning=True,
            mig_root=self.root.path,
            clock=self.clock,
            ask_every=0.05,
        )
        self._tasks["daemon"] = asyncio.create_task(app.serve(daemon))

    def start_mig(self) -> None:
        """Start `gpushare mig`."""
        driver = NvmlPartitions(self.folder / "driver-root", self.folder / "sys", self.folder / "proc")
        self._tasks["mig"] = asyncio.create_task(serve(self.root, driver, PACE))

    async def stop(self, *names: str) -> None:
        """Stop these, or everything."""
        for name in names or tuple(self._tasks):
            task = self._tasks.pop(name)
            task.cancel()
            await asyncio.wait([task])
            if name == "daemon":
                await gone(self.kubelet)

    def annotate(self, counts: SliceCounts) -> None:
        """Want exactly these."""
        annotate(self.server, WANTED_SLICES, encode(Wanted({self.uuid: counts})))

    @property
    def record(self) -> NodeRecord | None:
        """What the daemon has published."""
        return published_record(self.server)

    @property
    def records(self) -> tuple[GpuRecord, ...]:
        """The GPUs in that record."""
        return self.record.gpus if self.record is not None else ()

    def reason(self, uuid: str) -> str:
        """Return why a card is not divided as wanted."""
        return next((each.reason or "" for each in self.records if each.uuid == uuid), "")

    async def offers(self, whole: int = 0, **counts: int) -> None:
        """Wait until the kubelet counts exactly these healthy instances, such as `_3g_20gb`, and `whole` GPUs."""
        expected = {MIG.format(key[1:].replace("_", ".")): count for key, count in counts.items()}
        expected |= {GPU: whole} if whole else {}
        await self.kubelet.wait_for(lambda seen: {k: v for k, v in seen.allocatable().items() if v} == expected)

    def wait(self, profile: str, name: str) -> None:
        """Create a pod that asks for an instance."""
        container = {"name": "main", "image": "i", "resources": {"limits": {MIG.format(profile): "1"}}}
        metadata = {"name": name, "namespace": "team"}
        pod = {"metadata": metadata, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}
        self.server.store.create(PODS, pod)

    async def runs(self, profile: str, name: str) -> str:
        """Let a pod in that asks for an instance, or for a `GPU`; return which one it has."""
        resource = GPU if profile == GPU else MIG.format(profile)
        admitted = await self.kubelet.admit(Pod(name, [Container("main", {resource: 1})]))
        return admitted.containers["main"].environment["NVIDIA_VISIBLE_DEVICES"]

    def end(self, name: str) -> None:
        """End a pod."""
        self.kubelet.delete(next(pod for pod in self.kubelet.pods.values() if pod.name == name))


@pytest.fixture
async def node(kubelet: EmbeddedKubelet, short_path: Path, describe: Describe) -> AsyncIterator[MigNode]:
    """Return a node of one A100 in MIG mode without instances."""
    nvml = describe([FakeGpu(mig_enabled=True, mig_profiles="A100-40GB")])
    async with ApiServer() as server:
        made = MigNode(server, kubelet, short_path, nvml)
        try:
            yield made
        finally:
            await made.stop()


async def test_an_instance_appears_for_a_pod_that_asks(node: MigNode, tmp_path: Path) -> None:
    """The partitioner finds a place, `gpushare mig` makes the instance, the daemon offers it, and the pod gets it."""
    node.start_mig()
    node.start()
    async with partitioner(node.server, tmp_path / "one"):
        node.wait("3g.20gb", "p")
        await node.offers(_3g_20gb=1)
    assert (await node.runs("3g.20gb", "p")).startswith("MIG-")
    await until(lambda: [each.profile for each in node.records if each.start is not None] == ["3g.20gb"])
    (profiles,) = (each.profiles for each in node.records if each.profiles)
    assert {each.name: each.starts for each in profiles}["3g.20gb"] == (0, 4)


async def test_idle_instances_are_made_anew_beside_held_ones(node: MigNode) -> None:
    """What a pod holds stays, through restarts of both programs; what nobody holds makes room for what is wanted."""
    node.start_mig()
    node.annotate({"3g.20gb@4": 1, "2g.10gb@0": 1, "1g.5gb@2": 1})
    node.start()
    await node.offers(_3g_20gb=1, _2g_10gb=1, _1g_5gb=1)
    held = await node.runs("3g.20gb", "one")
    await node.stop("mig")
    node.annotate({"3g.20gb@4": 1, "4g.20gb@0": 1})
    await node.offers(_3g_20gb=1)
    node.start_mig()
    await node.offers(_3g_20gb=1, _4g_20gb=1)
    await node.stop("daemon")
    node.annotate({"7g.40gb@0": 1})
    node.start()
    await until(lambda: [each.uuid for each in node.records if each.profile] == [held])
    node.end("one")
    await node.offers(_7g_40gb=1)


@pytest.mark.parametrize("call", CALLS)
async def test_held_instances_stay_if_both_programs_end_between_two_steps(node: MigNode, call: str) -> None:
    """Whichever call was the last before both ended: what a pod holds stays, and what is wanted comes, once."""
    node.start_mig()
    node.annotate({"3g.20gb@4": 1, "2g.10gb@0": 1})
    node.start()
    await node.offers(_3g_20gb=1, _2g_10gb=1)
    held = await node.runs("3g.20gb", "one")
    node.nvml.fail(0, call, ErrorCode.UNKNOWN)
    before = node.nvml.calls()[call]
    node.annotate({"3g.20gb@4": 1, "1g.5gb@0": 1, "1g.5gb@1": 1})
    await until(lambda: node.nvml.calls()[call] > before)
    await node.stop("daemon", "mig")
    node.nvml.recover(0)
    node.start()
    node.start_mig()
    await node.offers(_3g_20gb=1, _1g_5gb=2)
    await until(lambda: sorted(each.profile or "" for each in node.records) == ["", "1g.5gb", "1g.5gb", "3g.20gb"])
    assert [each.uuid for each in node.records if each.profile == "3g.20gb"] == [held]


async def test_instances_that_people_want_by_hand_are_made(node: MigNode) -> None:
    """Instances of nos' annotations have any place; those that are there stay where they are."""
    annotate(node.server, "nos.nebuly.com/spec-gpu-0-3g.20gb", "1")
    annotate(node.server, "nos.nebuly.com/spec-gpu-0-1g.5gb", "2")
    node.start_mig()
    node.start()
    await node.offers(_3g_20gb=1, _1g_5gb=2)


async def test_instances_of_another_shape_are_left_alone(
    kubelet: EmbeddedKubelet, short_path: Path, describe: Describe, tmp_path: Path
) -> None:
    """One of several compute instances, which a person made: no partitioner names its card before a pod needs it.

    Then it blocks its memory slices, and what is made for the pod is made beside it, in the room of what is idle there.
    """
    made_by_people = FakeMigInstance("1c.3g.20gb", gpu_instance=1)
    card = FakeGpu(mig_enabled=True, mig_profiles="A100-40GB", mig_instances=(made_by_people, FakeMigInstance()))
    nvml = describe([card])
    async with ApiServer() as server:
        node = MigNode(server, kubelet, short_path, nvml)
        try:
            node.start_mig()
            node.start()
            await node.offers(_1c_3g_20gb=1, _1g_5gb=1)
            async with partitioner(server, tmp_path / "one"):
                node.wait("7g.40gb", "large")
                await until(lambda: "has 4 of 8 memory slices left" in str(messages(server, "large")))
                assert WANTED_SLICES not in server.store.find(NODES, NODE)[0]["metadata"]["annotations"]
                node.wait("2g.10gb", "p")
                await node.offers(_1c_3g_20gb=1, _2g_10gb=1)
            assert (await node.runs("1c.3g.20gb", "other")).startswith("MIG-")
        finally:
            await node.stop()


async def test_instances_that_are_there_are_offered_without_gpushare_mig(node: MigNode) -> None:
    """Nothing is made, and the record says why."""
    node.annotate({"7g.40gb@0": 1})
    node.start()
    await until(lambda: node.record is not None and "gpushare mig does not run" in str(node.record.notices))


@asynccontextmanager
async def without_mig(
    kubelet: EmbeddedKubelet, folder: Path, nvml: FakeNvml, config: str = ""
) -> AsyncIterator[MigNode]:
    """Run a node whose cards are not in MIG mode, with daemon and `gpushare mig`."""
    async with ApiServer() as server:
        node = MigNode(server, kubelet, folder, nvml)
        node.configure(config)
        try:
            node.start_mig()
            node.start()
            yield node
        finally:
            await node.stop()


async def test_cards_are_brought_into_mig_mode_only_if_idle_and_configured(
    kubelet: EmbeddedKubelet, short_path: Path, tmp_path: Path, describe: Describe
) -> None:
    """`keep` leaves all cards whole, and says how to change that; `manage` switches those that nobody has."""
    nvml = describe([FakeGpu(mig_profiles="A100-40GB")] * 2)
    async with without_mig(kubelet, short_path, nvml) as node, partitioner(node.server, tmp_path / "one"):
        await node.offers(whole=2)
        node.wait("2g.10gb", "p")
        await until(lambda: messages(node.server, "p"))
        assert messages(node.server, "p")[0].startswith("SliceNotMade: no GPU of the cluster is partitioned by MIG")
        assert node.record is not None
        assert len([each for each in node.record.notices if "set partitioning.migMode to manage" in each]) == 2
        held = await node.runs(GPU, "whole")
        assert nvml.calls()["nvmlDeviceSetMigMode"] == 0
        node.configure(MANAGE)
        await node.offers(whole=1, _2g_10gb=1)
        assert nvml.calls()["nvmlDeviceSetMigMode"] == 1
        assert [each.uuid for each in node.records if each.mode == "exclusive" and each.profile is None] == [held]
        assert (await node.runs("2g.10gb", "p")).startswith("MIG-")
        node.end("whole")
        await until(lambda: len([each for each in node.records if each.profiles]) == 2)
        assert nvml.calls()["nvmlDeviceSetMigMode"] == 2


async def test_an_obstacle_to_mig_mode_is_said_with_a_remedy(
    kubelet: EmbeddedKubelet, short_path: Path, describe: Describe
) -> None:
    """Here a program uses the card, or a reset is needed; then the mode comes by itself."""
    needs_reset = FakeGpu(mig_profiles="A100-40GB", mig_needs_reset=True)
    nvml = describe([FakeGpu(mig_profiles="A100-40GB", processes=(FakeProcess(4711),)), needs_reset])
    busy, pending = (gpu.uuid for gpu in nvml.gpus)
    async with without_mig(kubelet, short_path, nvml, MANAGE) as node:
        await until(lambda: "while programs use the GPU (processes 4711)" in node.reason(busy))
        await until(lambda: "reset it (nvidia-smi --gpu-reset)" in node.reason(pending))
        node.annotate({"7g.40gb@0": 1})
        nvml.replace_gpu(0, FakeGpu(mig_profiles="A100-40GB"))
        await node.offers(_7g_40gb=1)
        nvml.replace_gpu(1, FakeGpu(mig_enabled=True, mig_profiles="A100-40GB"))
        await until(lambda: len([each for each in node.records if each.profiles]) == 2)
        assert not node.reason(pending)


async def test_an_instance_is_hidden_before_it_goes(node: MigNode, kubelet: EmbeddedKubelet) -> None:
    """The Node shows such an instance no more, while it can still be allocated; the kubelet writes nothing here."""
    now = [1000.0]
    node.clock = lambda: now[0]

    def shown() -> str | None:
        (there,) = node.server.store.find(NODES, NODE)
        count: str | None = there["status"]["allocatable"].get(MIG.format("1g.5gb"))
        return count

    node.start_mig()
    node.start()
    node.annotate({"1g.5gb@0": 1, "1g.5gb@1": 1})
    await until(lambda: shown() == "2", shown)
    node.annotate({"1g.5gb@0": 1})
    await until(lambda: shown() == "1", shown)
    assert len(kubelet.healthy(MIG.format("1g.5gb"))) == 2
    now[0] += 60
    await node.offers(_1g_5gb=1)
    assert shown() == "1"


async def test_an_instance_that_is_not_wanted_any_more_at_a_start_is_hidden_before_it_goes(
    node: MigNode, kubelet: EmbeddedKubelet
) -> None:
    """What was wanted changed while no daemon ran: a pod that is bound to the idle instance by then gets it."""
    now = [1000.0]
    node.clock = lambda: now[0]

    def shown() -> str | None:
        (there,) = node.server.store.find(NODES, NODE)
        count: str | None = there["status"]["allocatable"].get(MIG.format("1g.5gb"))
        return count

    node.start_mig()
    node.start()
    node.annotate({"1g.5gb@0": 1, "1g.5gb@1": 1})
    await until(lambda: shown() == "2", shown)
    await node.stop("daemon")
    node.annotate({"1g.5gb@0": 1})
    node.start()
    await until(lambda: shown() == "1", shown)
    await until(lambda: len(kubelet.healthy(MIG.format("1g.5gb"))) == 2)
    assert {await node.runs("1g.5gb", name) for name in ("one", "two")} == kubelet.held(MIG.format("1g.5gb"))
    await until(lambda: shown() == "2", shown)
    node.end("two")
    await until(lambda: shown() == "1", shown)
    now[0] += 60
    await node.offers(_1g_5gb=1)
