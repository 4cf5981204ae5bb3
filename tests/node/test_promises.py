"""Tests of how a node follows what pods were promised, and publishes what they have."""

from collections.abc import AsyncIterator, MutableMapping, MutableSequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpushare_plugin.config.schema.names import CORES
from gpushare_plugin.core.effect import unknown
from gpushare_plugin.core.usage import GpuUsage
from gpushare_plugin.kube.names import FIELD_MANAGER
from gpushare_plugin.ledger.annotations import ALIYUN_ASSIGNED, ALIYUN_INDEX, ALLOCATION, LIMITS, PROMISE, write_limits
from gpushare_plugin.observe.metrics.node import METRICS, View
from gpushare_plugin.testing.cluster import ApiServer, granted
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from tests.chart.rendering import objects
from tests.node.promises import MEMORY, FollowedNode, a_pod, followed, gpus_of, in_api, path, promise, promise_of
from tests.nodes import a_gpu
from tests.unit.sharing.settings import GPU_MEM
from tests.waiting import until

Log = list[MutableMapping[str, Any]]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server that allows what the chart's rules allow."""
    async with ApiServer(granted(objects({"cluster": {"followPods": True}}), "gpushare")) as started:
        yield started


@pytest.fixture
async def node(server: ApiServer, kubelet: EmbeddedKubelet, short_path: Path) -> AsyncIterator[FollowedNode]:
    """Run a node of three GPUs of 8 GiB."""
    async with followed(server, kubelet, short_path, 8, 8, 8) as running:
        yield running


async def test_a_pod_gets_the_gpu_that_it_was_promised(node: FollowedNode) -> None:
    """The node alone would choose the first GPU; the promise names the last, and the truth is written into the pod."""
    pod = a_pod("one", 3)
    assert gpus_of(await node.admit(pod, {"c0": {2: 3}})) == {2: 3}
    await node.annotated(pod, {"c0": {2: 3}})
    written = node.annotations(pod)
    assert (written[ALIYUN_INDEX], written[ALIYUN_ASSIGNED]) == ("2", "true")


async def test_a_pod_without_a_promise_goes_where_the_node_decides(node: FollowedNode) -> None:
    """Nothing was promised: the local policy chooses, and the pod is annotated all the same."""
    pod = a_pod("one", 3)
    assert gpus_of(await node.admit(pod)) == {0: 3}
    await node.annotated(pod, {"c0": {0: 3}})


async def test_a_pod_gets_several_gpus_where_it_was_promised_several(node: FollowedNode) -> None:
    """An even split is what the kubelet is given and may allocate; the container sees each GPU with its limit."""
    pod = a_pod("two", 6)
    admitted = await node.admit(pod, {"c0": {0: 3, 2: 3}})
    assert gpus_of(admitted) == {0: 3, 2: 3}
    environment = admitted.containers["c0"].environment
    assert environment["NVIDIA_VISIBLE_DEVICES"] == ",".join(a_gpu(index).uuid for index in (0, 2))
    assert environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "3072,3072"
    aliyun = {key: value for key, value in environment.items() if key.startswith("ALIYUN_COM_GPU_MEM_")}
    assert aliyun == {
        "ALIYUN_COM_GPU_MEM_IDX": "0,2",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "8",
    }
    await node.annotated(pod, {"c0": {0: 3, 2: 3}})
    assert node.annotations(pod)[ALIYUN_INDEX] == "0,2"


async def test_no_pod_gets_several_gpus_without_a_promise(node: FollowedNode) -> None:
    """Only where a promise says so: the same units for another pod are refused, as memory cannot span GPUs."""
    await node.admit(a_pod("first", 6), {"c0": {0: 6}})
    await node.admit(a_pod("second", 6), {"c0": {1: 6}})
    await node.admit(a_pod("third", 6), {"c0": {2: 6}})
    with pytest.raises(AdmissionError, match="no single GPU has as many free"):
        await node.admit(a_pod("fourth", 4))


async def test_variables_of_containers_count_the_whole_pod(node: FollowedNode) -> None:
    """Each container of a known pod reads the units of the pod, and its own."""
    pod = a_pod("several", 2, 3, init=(4,))
    admitted = await node.admit(pod, {"c0": {1: 2}, "c1": {1: 3}, "i0": {1: 4}})
    read = {
        name: (
            started.environment["ALIYUN_COM_GPU_MEM_POD"],
            started.environment["ALIYUN_COM_GPU_MEM_CONTAINER"],
            started.environment["ALIYUN_COM_GPU_MEM_IDX"],
        )
        for name, started in admitted.containers.items()
    }
    assert read == {"i0": ("5", "4", "1"), "c0": ("5", "2", "1"), "c1": ("5", "3", "1")}
    await node.annotated(pod, {"i0": {1: 4}, "c0": {1: 2}, "c1": {1: 3}})


async def test_pods_of_equal_size_may_swap(node: FollowedNode, log: Log) -> None:
    """The kubelet asks for the one that was bound last: each promise is used once, and nothing has drifted."""
    first, second = a_pod("first", 3), a_pod("second", 3)
    await node.bind(first, {"c0": {1: 3}})
    await node.bind(second, {"c0": {2: 3}})
    of_second = gpus_of(await node.kubelet.admit(second))
    await node.annotated(second, {"c0": of_second})
    of_first = gpus_of(await node.kubelet.admit(first))
    assert sorted([*of_first.items(), *of_second.items()]) == [(1, 3), (2, 3)]
    await node.annotated(first, {"c0": of_first})
    assert [each for each in log if each["event"] == "pod_drifted"] == []


async def test_a_promise_that_cannot_be_kept_is_reported(node: FollowedNode, log: Log) -> None:
    """Somebody has the GPU: the pod gets another one, and annotations and log say so."""
    await node.admit(a_pod("all", 8), {"c0": {2: 8}})
    pod = a_pod("one", 3)
    assert gpus_of(await node.admit(pod, {"c0": {2: 3}})) == {0: 3}
    await node.annotated(pod, {"c0": {0: 3}})
    assert node.annotations(pod)[ALIYUN_INDEX] == "0"
    await until(lambda: [each for each in log if each["event"] == "pod_drifted"])
    excess = View(node.status.phase.snapshot)
    (metric,) = [each for each in METRICS if each.name == "gpushare_gpu_units_drifted"]
    assert [value for _, value in metric.samples(excess)] == [3, 0, 0]
    (drifted,) = [each for each in log if each["event"] == "pod_drifted"]
    assert (drifted["pod"], drifted["resource"]) == ("default/one", GPU_MEM)
    assert (drifted["expected"], drifted["found"]) == ({a_gpu(2).uuid: 3}, {a_gpu(0).uuid: 3})


async def test_a_pod_that_is_seen_too_late_goes_where_the_node_decides(node: FollowedNode, log: Log) -> None:
    """The kubelet is not kept waiting for a watch that is seconds behind; the truth is written once the pod is seen."""
    node.server.watches.delay = 3600.0
    pod = a_pod("one", 3)
    node.create(pod, {"c0": {2: 3}})
    assert gpus_of(await node.kubelet.admit(pod)) == {0: 3}
    node.server.watches.delay = 0.0
    await node.server.watches.cut()
    await node.annotated(pod, {"c0": {0: 3}})
    await until(lambda: [each for each in log if each["event"] == "pod_drifted"])


async def test_a_pod_that_was_deleted_before_it_came_does_not_get_in_the_way(node: FollowedNode) -> None:
    """Its promise ends with it."""
    gone, pod = a_pod("gone", 3), a_pod("one", 3)
    await node.bind(gone, {"c0": {1: 3}})
    node.server.store.delete(path(gone), gone.name)
    assert gpus_of(await node.admit(pod, {"c0": {2: 3}})) == {2: 3}


async def test_a_pod_that_is_being_deleted_comes_last(node: FollowedNode) -> None:
    """It may never come: the promise of the one that does is followed."""
    ending, pod = a_pod("ending", 3), a_pod("one", 3)
    await node.bind(ending, {"c0": {1: 3}})
    node.server.store.patch(path(ending), "ending", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert gpus_of(await node.admit(pod, {"c0": {2: 3}})) == {2: 3}


async def test_promises_outlast_a_restart_of_the_daemon(node: FollowedNode) -> None:
    """They are read again, and who has got something comes from the kubelet."""
    served, pod = a_pod("first", 3), a_pod("second", 3)  # so a list has them in this order
    await node.admit(served, {"c0": {1: 3}})
    await node.bind(pod, {"c0": {2: 3}})
    await node.stop()
    await node.start()
    assert gpus_of(await node.kubelet.admit(pod)) == {2: 3}
    await node.annotated(served, {"c0": {1: 3}})
    await node.annotated(pod, {"c0": {2: 3}})


async def test_promises_outlast_a_restart_of_the_kubelet(node: FollowedNode) -> None:
    """What pods have stays written, and the next promise is followed."""
    served, pod = a_pod("served", 3), a_pod("one", 3)
    await node.admit(served, {"c0": {1: 3}})
    await node.bind(pod, {"c0": {2: 3}})
    await node.kubelet.restart()
    await node.kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 24})
    assert gpus_of(await node.kubelet.admit(pod)) == {2: 3}
    await node.annotated(pod, {"c0": {2: 3}})
    await node.annotated(served, {"c0": {1: 3}})


async def test_the_choice_of_aliyuns_scheduler_is_followed(node: FollowedNode) -> None:
    """A pod that Aliyun's extender bound gets the GPU whose index is in its annotation."""
    pod = a_pod("one", 3)
    await node.bind(pod, annotations={ALIYUN_INDEX: "2", "ALIYUN_COM_GPU_MEM_POD": "3", ALIYUN_ASSIGNED: "false"})
    assert gpus_of(await node.kubelet.admit(pod)) == {2: 3}
    await until(lambda: node.annotations(pod)[ALIYUN_ASSIGNED] == "true")


@pytest.mark.parametrize(
    "annotations",
    [
        promise({"c0": {2: 4}}),
        promise({"c1": {2: 3}}),
        promise({"c0": {2: 3}}, node="another"),
        promise({"c0": {77: 3}}),
        {PROMISE: "nonsense"},
        {ALIYUN_INDEX: "77", "ALIYUN_COM_GPU_MEM_POD": "3"},
        promise({"c0": {2: 3}, **{f"c{number}": {2: 3} for number in range(1, 1200)}}),
    ],
)
async def test_a_promise_that_cannot_be_true_says_nothing(node: FollowedNode, annotations: dict[str, str]) -> None:
    """Anybody who may write a pod may write one: what does not agree with the pod and the node is not followed."""
    pod = a_pod("one", 3)
    await node.bind(pod, annotations=annotations)
    assert gpus_of(await node.kubelet.admit(pod)) == {0: 3}
    await node.annotated(pod, {"c0": {0: 3}})


async def test_pods_of_this_node_are_written_only_if_something_changed(node: FollowedNode) -> None:
    """One apply for each pod with something to say: no other pod, no pod that ended, none twice."""
    elsewhere, pods = a_pod("elsewhere", 3), [a_pod(f"pod-{number}", 2) for number in range(3)]
    node.server.store.create(path(elsewhere), in_api(elsewhere, "another", promise({"c0": {2: 3}}, node="another")))
    for number, pod in enumerate(pods):
        await node.admit(pod, {"c0": {number: 2}})
    for number, pod in enumerate(pods):
        await node.annotated(pod, {"c0": {number: 2}})
        node.server.store.patch(path(pod), pod.name, {"status": {"phase": "Running"}})
    later = a_pod("later", 3)
    await node.admit(later, {"c0": {1: 3}})
    await node.annotated(later, {"c0": {1: 3}})
    written = [each.name for each in node.server.asked if (each.verb, each.resource) == ("patch", "pods/status")]
    assert sorted(filter(None, written)) == ["later", "pod-0", "pod-1", "pod-2"]
    (found,) = node.server.store.find(path(later), "later")
    owners = {each["manager"] for each in found["metadata"]["managedFields"]}
    assert owners == {FIELD_MANAGER}


async def test_another_pod_of_the_same_name_is_not_written(node: FollowedNode) -> None:
    """The kubelet may still have the first one: what that has is not said of the second."""
    first, second = a_pod("web", 3), a_pod("web", 3)
    await node.admit(first, {"c0": {1: 3}})
    await node.annotated(first, {"c0": {1: 3}})
    node.server.store.delete(path(first), "web")
    await node.bind(second, {"c0": {2: 3}})
    later = a_pod("later", 2)
    await node.admit(later, {"c0": {0: 2}})
    await node.annotated(later, {"c0": {0: 2}})
    assert node.told(second) == {}
    assert gpus_of(await node.kubelet.admit(second)) == {2: 3}


async def test_writes_that_fail_are_tried_again_and_hold_nothing_up(node: FollowedNode, log: Log) -> None:
    """The kubelet is answered meanwhile; the truth is written when the API server takes it."""
    node.server.refusals.append(Refusal(500, "patch", resource="pods/status", times=2))
    first, second = a_pod("first", 3), a_pod("second", 2)
    await node.admit(first, {"c0": {1: 3}})
    await until(lambda: [each for each in log if each["event"] == "api_request_failed"])
    assert gpus_of(await node.admit(second, {"c0": {2: 2}})) == {2: 2}
    await node.annotated(first, {"c0": {1: 3}})
    await node.annotated(second, {"c0": {2: 2}})


async def test_a_pod_that_cannot_be_written_holds_up_no_other(node: FollowedNode, log: Log) -> None:
    """The API server takes no more annotations for one pod: that is logged, and the others are written."""
    node.server.refusals.append(Refusal(422, "patch", resource="pods/status", times=1))
    first, second = a_pod("first", 3), a_pod("second", 2)
    await node.admit(first, {"c0": {1: 3}})
    await until(lambda: [each for each in log if each["event"] == "pod_not_annotated"])
    await node.admit(second, {"c0": {2: 2}})
    await node.annotated(second, {"c0": {2: 2}})
    assert ALLOCATION not in node.annotations(first)


async def test_a_daemon_without_rights_on_pods_goes_on(
    server: ApiServer, kubelet: EmbeddedKubelet, short_path: Path, log: Log
) -> None:
    """It says so once, and the node decides alone."""
    server.permissions = granted(objects({"cluster": {"cordonConfigMaps": True}}), "gpushare")
    async with followed(server, kubelet, short_path, 8, 8) as node:
        for pod in (a_pod("one", 3), a_pod("two", 3)):
            node.create(pod, {"c0": {1: 3}})
            assert gpus_of(await node.kubelet.admit(pod)) == {0: 3}
    told = [each for each in log if each["event"] == "pods_forbidden"]
    assert [each["log_level"] for each in told] == ["error"]
    assert [each for each in log if each["event"] == "api_request_failed"] == []


async def test_a_daemon_that_may_only_read_pods_follows_promises(
    server: ApiServer, kubelet: EmbeddedKubelet, short_path: Path, log: Log
) -> None:
    """That annotations cannot be written is said once, and changes nothing else."""
    assert server.permissions is not None
    server.permissions = {each for each in server.permissions if (each.verb, each.resource) != ("patch", "pods/status")}
    async with followed(server, kubelet, short_path, 8, 8) as node:
        assert gpus_of(await node.admit(a_pod("one", 3), {"c0": {1: 3}})) == {1: 3}
        await until(lambda: [each for each in log if each["event"] == "pods_forbidden"])
        assert gpus_of(await node.admit(a_pod("two", 3), {"c0": {1: 3}})) == {1: 3}


async def test_containers_of_a_pod_that_failed_are_not_waited_for(node: FollowedNode) -> None:
    """Its first container got its units, and its second could not: what it was promised is free for others."""
    failing = a_pod("failing", 2, 9)
    await node.bind(failing, {"c0": {1: 2}})
    with pytest.raises(AdmissionError):
        await node.kubelet.admit(failing)
    node.server.store.patch(path(failing), "failing", {"status": {"phase": "Failed"}})
    pod = a_pod("one", 2)
    assert gpus_of(await node.admit(pod, {"c0": {2: 2}})) == {2: 2}
    await node.annotated(pod, {"c0": {2: 2}})


LIMITED = (
    "health: {rescanSeconds: 60}\n"
    f"sharing: {{memory: {{resources: [{{name: {GPU_MEM}, isolation: hami-core, compute: requested}}]}}}}\n"
)


async def test_whether_limits_are_in_effect_is_written_into_pods(
    server: ApiServer, kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """Under an isolation, what the looks at the usage find out of each container is in an annotation of its pod."""
    often = MEMORY.replace("rescanSeconds: 60", "rescanSeconds: 1")
    settings = often.replace("gpu-mem}", "gpu-mem, isolation: hami-core}")
    async with followed(server, kubelet, short_path, 8, settings=settings) as node:
        uuid = node.cards.inventory.cards[0].uuid
        node.cards.samples = (GpuUsage(uuid, unknown="no host PIDs"),)
        pod = a_pod("one", 3)
        await node.admit(pod, {"c0": {0: 3}})
        for sample, effect in (
            (node.cards.samples, unknown("no host PIDs")),
            ((GpuUsage(uuid, processes=()),), unknown("no process of the container uses the GPU")),
        ):
            node.cards.samples = sample
            expected = write_limits({"c0": {uuid: effect}})
            await until(partial(node.has, pod, LIMITS, expected))


class InOrder(Random):
    """Draws what was sorted in that order, or from its end."""

    def __init__(self, *, backwards: bool) -> None:
        """Draw from the end where it goes `backwards`."""
        super().__init__(0)
        self._backwards = backwards

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Leave the order, or turn it round."""
        if self._backwards:
            x.reverse()


@pytest.fixture(params=[CORES, GPU_MEM])
async def both(request: pytest.FixtureRequest, server: ApiServer, short_path: Path) -> AsyncIterator[FollowedNode]:
    """Run a node of three GPUs that offers memory and compute; its kubelet asks for one of them always first."""
    rng = InOrder(backwards=request.param != min(CORES, GPU_MEM))
    async with (
        EmbeddedKubelet(short_path, rng=rng) as kubelet,
        followed(server, kubelet, short_path, 8, 8, 8, settings=LIMITED) as running,
    ):
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 24, CORES: 300})
        yield running


def with_compute(name: str, memory: int, compute: int) -> Pod:
    """Return a pod whose container c0 requests memory and compute."""
    return Pod(name, [Container("c0", {GPU_MEM: memory, CORES: compute})])


@pytest.mark.parametrize("gpus", [(2,), (0, 2)])
async def test_memory_and_compute_are_where_they_were_promised(both: FollowedNode, gpus: tuple[int, ...]) -> None:
    """Whichever the kubelet asks for first, over one GPU and over two: of each GPU the same percentage."""
    pod = with_compute("one", 3 * len(gpus), 20 * len(gpus))
    promised = {GPU_MEM: dict.fromkeys(gpus, 3), CORES: dict.fromkeys(gpus, 20)}
    await both.bind(pod, annotations=promise_of("c0", promised))
    admitted = await both.kubelet.admit(pod)
    assert {resource: gpus_of(admitted, resource=resource) for resource in promised} == promised
    environment = admitted.containers["c0"].environment
    assert environment["NVIDIA_VISIBLE_DEVICES"] == ",".join(a_gpu(index).uuid for index in gpus)
    assert environment["CUDA_DEVICE_SM_LIMIT"] == "20"


async def test_a_promise_for_another_gpu_than_the_partners_is_not_followed(both: FollowedNode) -> None:
    """A promise that tears memory and compute of a container apart is kept for the first of them only."""
    pod = with_compute("one", 3, 20)
    await both.bind(pod, annotations=promise_of("c0", {GPU_MEM: {1: 3}, CORES: {2: 20}}))
    admitted = await both.kubelet.admit(pod)
    assert [gpus_of(admitted), gpus_of(admitted, resource=CORES)] in ([{1: 3}, {1: 20}], [{2: 3}, {2: 20}])


@pytest.mark.parametrize("gpus", [(2,), (0, 2)])
async def test_compute_follows_what_aliyuns_scheduler_chose(both: FollowedNode, gpus: tuple[int, ...]) -> None:
    """Aliyun's annotation names the GPUs of memory: compute is promised on the same ones."""
    pod = with_compute("one", 3 * len(gpus), 20 * len(gpus))
    chosen = {ALIYUN_INDEX: ",".join(map(str, gpus)), "ALIYUN_COM_GPU_MEM_POD": str(3 * len(gpus))}
    await both.bind(pod, annotations=chosen)
    admitted = await both.kubelet.admit(pod)
    assert gpus_of(admitted) == dict.fromkeys(gpus, 3)
    assert gpus_of(admitted, resource=CORES) == dict.fromkeys(gpus, 20)


async def test_no_compute_of_several_gpus_without_a_promise(both: FollowedNode) -> None:
    """Only where a promise says so: a container that was promised nothing gets no parts of two GPUs."""
    for index in range(3):
        pod = with_compute(f"pod-{index}", 1, 90)
        await both.bind(pod, annotations=promise_of("c0", {GPU_MEM: {index: 1}, CORES: {index: 90}}))
        await both.kubelet.admit(pod)
    late = with_compute("late", 1, 20)
    await both.bind(late)
    with pytest.raises(AdmissionError, match=rf"{CORES}.*20 units requested"):
        await both.kubelet.admit(late)
