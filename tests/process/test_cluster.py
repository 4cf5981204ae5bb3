"""The whole daemon as a process, against an API server that allows what the chart's rules allow, and nothing else."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from psutil import Process

from gpushare_plugin.config.directives import CONFIG, SCHEDULE
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.names import EXTENDER_LEASE, PARTITIONER_LEASE, UNHEALTHY_GPUS
from gpushare_plugin.kube.own_node.condition import condition
from gpushare_plugin.kube.own_node.labels import TIMESTAMP
from gpushare_plugin.kube.own_node.publisher import OwnedFields
from gpushare_plugin.kube.whole_cluster.wanted_slices import PARTITIONER
from gpushare_plugin.ledger.annotations import ALLOCATION
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, decode
from gpushare_plugin.slices.wanted import WANTED_SLICES
from gpushare_plugin.testing.cluster import ApiServer, Permission, granted
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import ErrorCode, FakeNvml
from tests.chart.rendering import objects
from tests.process.daemon import Daemon, gpushare, running
from tests.unit.kube.cluster import NODE, a_node, annotate, label, name_in_configmap, written
from tests.waiting import until

GPUS = "gpus:\n- {name: NVIDIA A10, memory: 24GiB, count: 2}\n"
SLICES = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
MEMORY = "version: v1\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}\n"
GPU, GPU_MEM = "nvidia.com/gpu", "aliyun.com/gpu-mem"

Start = Callable[..., AbstractAsyncContextManager[Daemon]]


CORDONS: dict[str, Any] = {"cluster": {"cordonConfigMaps": True}}
"""Values with which the daemon may read ConfigMaps, as it does without the chart."""

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


def rights(account: str, values: dict[str, Any] | None = None) -> frozenset[Permission]:
    """Return what the chart allows one of its service accounts."""
    found = granted(objects(values), account)
    assert found
    return found


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server that knows the daemon by the chart's rules."""
    async with ApiServer(rights("gpushare", CORDONS)) as started:
        a_node(started)
        yield started


@pytest.fixture
async def start(server: ApiServer, kubelet: EmbeddedKubelet, short_path: Path) -> Start:
    """Return how to run the daemon with three named configs, in a pod that the kubelet shows."""
    await kubelet.admit(Pod("gpushare-x", [Container("gpushare", {})], namespace="kube-system"))
    configs = short_path / "configs"
    configs.mkdir()
    (configs / "slices").write_text(SLICES)
    (configs / "more").write_text(SLICES.replace("4", "8"))
    (configs / "memory").write_text(MEMORY)
    (short_path / "gpus.yaml").write_text(GPUS)
    kubeconfig = server.kubeconfig(short_path / "kubeconfig")
    fixed: list[str | Path] = ["--simulate", short_path / "gpus.yaml", "--kubeconfig", kubeconfig]
    fixed += ["--config-directory", configs, "--default-config", "slices"]
    fixed += ["--pod-resources-socket", kubelet.pod_resources_socket]
    environment = {"NODE_NAME": NODE, "POD_NAMESPACE": "kube-system", "POD_NAME": "gpushare-x"}

    def run(*more: str) -> AbstractAsyncContextManager[Daemon]:
        return running(kubelet, *fixed, *more, environment=environment)

    return run


def mode(server: ApiServer) -> set[str | None]:
    """Return the modes of the GPUs in the annotation."""
    if (text := written(server).annotations.get(GPUS_ANNOTATION)) is None:
        return set()
    return {gpu.mode for gpu in decode(text).gpus}


def notices(server: ApiServer) -> str:
    """Return the notices on the node."""
    return "\n".join(decode(written(server).annotations[GPUS_ANNOTATION]).notices)


async def cleaned(short_path: Path) -> str:
    """Run the cleanup of the chart, and return what it printed."""
    done = await gpushare("cleanup", "--kubeconfig", short_path / "kubeconfig")
    assert done.status == 0, done.errors
    return done.output


async def test_the_daemon_does_without_the_arrays_of_the_ledger(
    server: ApiServer, kubelet: EmbeddedKubelet, start: Start
) -> None:
    """Only who looks at all nodes of a cluster loads numpy, which takes memory and time to start."""
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU: 8})
        await until(lambda: written(server).labels and written(server).capacity)
        assert [each.path for each in Process(daemon.process.pid).memory_maps() if "numpy" in each.path] == []


async def test_every_right_is_used_and_none_is_missing(
    server: ApiServer, kubelet: EmbeddedKubelet, start: Start
) -> None:
    """A run with labels, annotation, capacity and a cordon uses each right of the chart, and needs no other."""
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU: 8})
        await until(lambda: written(server).labels and written(server).capacity)
        name_in_configmap(server, "1")
        await daemon.advertises(kubelet, {GPU: 4})
        await until(lambda: {each.verb for each in server.asked} >= {"list", "watch", "patch"})
        assert daemon.events("api_request_failed") == []
    assert {each.status for each in server.asked} == {200}
    assert server.used == server.permissions


async def test_rights_on_pods_are_used_where_pods_are_followed(
    server: ApiServer, kubelet: EmbeddedKubelet, start: Start
) -> None:
    """With `cluster.followPods` of the chart the daemon lists, watches and annotates the pods of its node."""
    server.permissions = rights("gpushare", {"cluster": {"followPods": True, "cordonConfigMaps": True}})
    uid = f"{1:08x}-0000-4000-8000-{1:012x}"
    limits = {"containers": [{"name": "main", "resources": {"limits": {GPU_MEM: "3"}}}]}
    pod = Pod("one", [Container("main", {GPU_MEM: 3})], uid=uid)
    path = "/api/v1/namespaces/default/pods"
    label(server, CONFIG, "memory")
    async with start("--follow-pods", "true") as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        server.store.create(path, {"metadata": {"name": "one", "uid": uid}, "spec": {"nodeName": NODE, **limits}})
        await kubelet.admit(pod)
        await until(lambda: ALLOCATION in server.store.find(path, "one")[0]["metadata"].get("annotations", {}))
        name_in_configmap(server, "1")
        await daemon.advertises(kubelet, {GPU_MEM: 24})
        assert daemon.events("api_request_failed") == []
    assert {each.status for each in server.asked} == {200}
    assert server.used == server.permissions


async def test_events_and_the_condition_use_their_rights(
    server: ApiServer, kubelet: EmbeddedKubelet, start: Start, short_path: Path
) -> None:
    """With `cluster.events` of the chart the Node has Events, with counts; the condition needs no value."""
    server.permissions = rights("gpushare", {"cluster": {"events": True, "cordonConfigMaps": True}})

    def told(name: str, count: int) -> bool:
        return any(
            (each["count"], each["involvedObject"]["name"]) == (count, NODE) and f'"{name}"' in each["message"]
            for each in server.store.find("/api/v1/namespaces/default/events")
        )

    async with start("--events", "true") as daemon:
        await daemon.advertises(kubelet, {GPU: 8})
        for count in (1, 2):
            label(server, CONFIG, "memry")
            await until(partial(told, "memry", count))
            await until(lambda: notices(server) != "")
            label(server, CONFIG, "slices")
            await until(lambda: notices(server) == "")
        name_in_configmap(server, "1")
        await daemon.advertises(kubelet, {GPU: 4})
        await until(lambda: ready(server) == ("True", "SomeGpusUnusable"))
        assert daemon.events("api_request_failed") == []
    assert {each.status for each in server.asked} == {200, 201}
    assert server.used == server.permissions
    server.permissions = rights("gpushare-cleanup")
    await cleaned(short_path)
    assert ready(server) is None


def ready(server: ApiServer) -> tuple[str, str] | None:
    """Return status and reason of our condition."""
    found = condition(server.store.find(NODES, NODE)[0])
    return None if found is None else (found["status"], found["reason"])


def test_names_of_configmaps_are_enough() -> None:
    """With the nodes named in the chart, the rule names their ConfigMaps; a list and a watch of one need no more."""
    allowed = rights("gpushare", {"cluster": {"cordonNodes": [NODE]}})
    own = [each for each in allowed if each.resource == "configmaps"]
    assert {each.name for each in own} == {f"unhealthy-gpu-{NODE}"}
    assert {each.namespace for each in own} == {"kube-system"}
    assert any(each.allows("list", "configmaps", "kube-system", f"unhealthy-gpu-{NODE}") for each in own)
    assert not any(each.allows("list", "configmaps", "kube-system", None) for each in own)


async def test_labels_choose_the_settings_live(server: ApiServer, kubelet: EmbeddedKubelet, start: Start) -> None:
    """The label that is there at the start counts from the first unit; others follow without a restart."""
    label(server, CONFIG, "memory")
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        assert len(kubelet.registrations) == 1
        label(server, CONFIG, "slices")
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU) == 8)
        label(server, SCHEDULE, "share")
        await until(lambda: "node labels disagree" in notices(server))
        label(server, CONFIG, None)
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 48)
        await until(lambda: mode(server) == {"memory"} and notices(server) == "")
        label(server, CONFIG, "memry")
        await daemon.logged("config_rejected")
        await until(lambda: 'found no config "memry"' in notices(server))
        assert mode(server) == {"memory"}


async def test_a_wrong_name_does_not_keep_the_node_from_starting(
    server: ApiServer, kubelet: EmbeddedKubelet, start: Start
) -> None:
    """With a label that names no config the default holds, and the annotation has the reason."""
    label(server, CONFIG, "memry")
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU: 8})
        await until(lambda: mode(server) == {"time-slicing"})
        assert "nvidia.com/device-plugin.config=memry" in notices(server)


async def test_gpus_are_taken_out_and_brought_back(server: ApiServer, kubelet: EmbeddedKubelet, start: Start) -> None:
    """A ConfigMap that was there before the start counts from the first unit, an annotation later; both end."""
    name_in_configmap(server, "0")
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU: 4})
        annotate(server, UNHEALTHY_GPUS, "1")
        await daemon.advertises(kubelet, {GPU: 0})
        await until(lambda: not any(gpu.healthy for gpu in decode(written(server).annotations[GPUS_ANNOTATION]).gpus))
        name_in_configmap(server, None)
        annotate(server, UNHEALTHY_GPUS, None)
        await daemon.advertises(kubelet, {GPU: 8})


async def test_labels_can_be_left_to_feature_discovery(server: ApiServer, start: Start) -> None:
    """Where NVIDIA's feature discovery runs, none of its labels is ours."""
    async with start("--node-labels=false"):
        await until(lambda: written(server).annotations and written(server).capacity)
        assert written(server).labels == {}


async def test_labels_of_feature_discovery_are_left_to_it(server: ApiServer, start: Start) -> None:
    """Where it runs all the same, its own labels stay its own, and the log has the remedy."""
    label(server, TIMESTAMP, "1724632719", "nfd-master")
    label(server, "nvidia.com/gpu.machine", "DGX-1", "nfd-master")
    label(server, "nvidia.com/gpu.count", "7", "nfd-master")
    async with start() as daemon:
        await until(lambda: written(server).labels)
        assert "nvidia.com/gpu.count" not in written(server).labels
        await daemon.logged("labels_owned_by_others")
        await daemon.logged("feature_discovery_found", remedy="turn one of the two off; ours with --node-labels=false")


@pytest.mark.parametrize("trouble", ["away", "silent", "403", "429"])
async def test_the_kubelet_is_served_whatever_the_api_server_does(
    server: ApiServer, kubelet: EmbeddedKubelet, start: Start, trouble: str
) -> None:
    """Without the API server the default config is served, the log has the consequence, and the node follows later."""
    match trouble:
        case "away":
            await server.stop()
        case "silent":
            server.silent = True
        case status:
            server.refusals.append(Refusal(int(status)))
    label(server, CONFIG, "more")
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU: 8})
        if trouble != "silent":
            told = await daemon.logged("api_request_failed")
            assert told["consequence"]
        if trouble != "403":  # which is an answer
            await daemon.logged("api_server_timeout")
        await server.stop()
        server.silent = False
        server.refusals.clear()
        await server.start()
        await daemon.advertises(kubelet, {GPU: 16})
        await until(lambda: mode(server) == {"time-slicing"})


async def test_a_daemon_without_an_api_server_does_not_import_its_client(
    kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """With a node name alone, outside of a cluster, GPUs are served."""
    (short_path / "gpus.yaml").write_text(GPUS)
    environment = {"NODE_NAME": NODE, "PYTHONPROFILEIMPORTTIME": "1"}
    async with running(kubelet, "--simulate", short_path / "gpus.yaml", environment={"NODE_NAME": NODE}) as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        await daemon.logged("api_server_not_used")
    listed = await gpushare("list", "--simulate", short_path / "gpus.yaml", environment=environment)
    assert "gpushare_plugin.config.directives" in listed.errors
    assert "kubernetes" not in listed.errors


async def test_the_cleanup_leaves_nothing_of_ours(server: ApiServer, start: Start, short_path: Path) -> None:
    """The cleanup removes what is on Nodes, and the Leases, with the rights the chart gives it, and uses each.

    So slices that a partitioner wanted do not come back with the next installation.
    """
    async with start():
        await until(lambda: written(server).labels and written(server).capacity)
    assert written(server) != OwnedFields()
    server.store.update(NODES, NODE, {("metadata", "annotations", WANTED_SLICES): "{}"}, PARTITIONER)
    for name in (EXTENDER_LEASE, PARTITIONER_LEASE, "another"):
        server.store.create(LEASES, {"metadata": {"name": name}, "spec": {}})
    server.permissions, server.used = rights("gpushare-cleanup"), set()
    assert await cleaned(short_path) == (
        f"{NODE}: cleaned\nLease kube-system/gpushare-extender: deleted\n"
        "Lease kube-system/gpushare-partitioner: deleted\n"
    )
    assert [each["metadata"]["name"] for each in server.store.find(LEASES)] == ["another"]
    assert server.used == server.permissions
    (node,) = server.store.find(NODES, NODE)
    assert node["metadata"]["labels"] == {"kubernetes.io/hostname": NODE}
    assert node["metadata"]["annotations"] == node["status"]["capacity"] == {}
    assert await cleaned(short_path) == ""


async def test_a_cleanup_that_cannot_be_done_says_so(server: ApiServer, short_path: Path) -> None:
    """Without the right to, the cleanup fails with the server's words, and so it does for a Node that is not there."""
    server.permissions = frozenset()
    kubeconfig = server.kubeconfig(short_path / "kubeconfig")
    done = await gpushare("cleanup", "--kubeconfig", kubeconfig)
    assert done.status == 1
    assert 'cannot list resource "nodes"' in done.errors
    server.permissions = None
    done = await gpushare("cleanup", "--kubeconfig", kubeconfig, "--node-name", "nobody")
    assert done.status == 1
    assert "Node nobody not found" in done.errors


async def test_a_node_that_lost_its_gpus_says_so(
    server: ApiServer, kubelet: EmbeddedKubelet, start: Start, short_path: Path
) -> None:
    """What was published of GPUs before a reboot is removed while none responds, and published again when one does."""
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU: 8})
        await until(lambda: written(server).labels and written(server).capacity)
    arguments: list[str | Path] = [
        "--kubeconfig",
        short_path / "kubeconfig",
        "--config-directory",
        short_path / "configs",
    ]
    arguments += ["--default-config", "slices", "--fail-on-init-error=false"]
    with FakeNvml(failures={"nvmlInitWithFlags": ErrorCode.DRIVER_NOT_LOADED}) as none:
        async with running(kubelet, *arguments, environment={**none.environment, "NODE_NAME": NODE}) as daemon:
            await daemon.logged("waiting_for_gpus")
            await until(lambda: not written(server).labels and "no GPU" in notices(server))
            assert decode(written(server).annotations[GPUS_ANNOTATION]).gpus == ()
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU: 8})
        await until(lambda: written(server).labels)


async def test_a_label_for_an_unsuitable_config_costs_a_node_no_gpus(
    server: ApiServer, kubelet: EmbeddedKubelet, start: Start, short_path: Path
) -> None:
    """A config for GPUs this node lacks does not take its others away at the next start."""
    (short_path / "configs" / "large").write_text(MEMORY.replace("gpu-mem}", "gpu-mem, devices: [7]}"))
    label(server, CONFIG, "large")
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU: 8})
        assert "matches no GPU" in (await daemon.logged("config_for_label_rejected"))["problem"]
