"""What each isolation promised is in effect, for each kind of container, and after each restart."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpushare_plugin.ledger.annotations import promise_annotations
from gpushare_plugin.ledger.node import recorded_node
from gpushare_plugin.ledger.node_record import decode, encode
from gpushare_plugin.ledger.node_record import record as node_record
from gpushare_plugin.node.status import Serving
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeGpu
from tests.node.limited import GPU_GIB, WAYS, LimitedNode, Machine, limited, machine
from tests.node.promises import Promised
from tests.node.test_mps_namespaces import as_on_the_host
from tests.nodes import a_gpu
from tests.unit.gpus.conftest import Node, describe
from tests.unit.kube.cluster import NODE
from tests.unit.ledger.objects import account, memory
from tests.unit.sharing.settings import GPU_MEM

__all__ = ["describe"]

CARDS = [FakeGpu(uuid=a_gpu(index).uuid, memory_mib=GPU_GIB * 1024) for index in range(2)]


def container(name: str, units: int, *, sidecar: bool = False) -> Container:
    """Return a container with units of memory."""
    return Container(name, {GPU_MEM: units}, restartable=sidecar)


PODS: Sequence[tuple[Pod, Promised]] = (
    (Pod("several-gpus", [container("main", 4)]), {"main": {0: 2, 1: 2}}),
    (
        Pod(
            "several-containers",
            [container("main", 3), container("other", 2)],
            [container("init", 5), container("sidecar", 1, sidecar=True)],
        ),
        {"init": {0: 5}, "sidecar": {0: 1}, "main": {0: 3}, "other": {0: 2}},
    ),
)
"""Pods with each kind of container, and the units that the extender promised to these, by the index of the GPU.

The others get units of the init container once this has ended.
"""

SHARED = "health: {rescanSeconds: 60}\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}\n"
RESTARTS: Mapping[str, Callable[[LimitedNode], Awaitable[None]]] = {
    "containers": LimitedNode.restart_containers,
    "daemon": LimitedNode.restart_daemon,
    "agents": LimitedNode.restart_agents,
    "kubelet": LimitedNode.restart_kubelet,
    "driver": LimitedNode.restart_driver,
}
"""What can start again."""


@pytest.fixture(params=WAYS)
def prepared(describe: Node, short_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Describe a machine for each way to limit memory."""
    nvml = describe(CARDS, driver_version=DRIVER_WITH_LIMITS)
    with machine(short_path, nvml, WAYS[request.param]) as made:
        yield made


async def test_each_container_has_what_it_was_promised(kubelet: EmbeddedKubelet, prepared: Machine) -> None:
    """On one GPU and on several, for several containers, init containers and sidecars, one pod beside the other."""
    async with limited(kubelet, prepared) as node:
        for pod, promised in PODS:
            await node.run(pod, promised)
        await node.holds()


async def test_restarts_leave_each_limit_in_effect(kubelet: EmbeddedKubelet, prepared: Machine) -> None:
    """Of containers, of the daemon, of its agents, of the kubelet and of the driver, one after the other.

    While GPUs wait for their pods to be shared without isolation, the limits are in effect, too.
    """
    async with limited(kubelet, prepared) as node:
        await node.run(*PODS[0])
        await node.holds()
        for restart in RESTARTS.values():
            await restart(node)
            await node.holds()
        await node.configure(SHARED)
        await node.holds()


@pytest.mark.parametrize("prepared", ["mps, protocol 3"], indirect=True)
async def test_a_promise_of_several_gpus_holds_with_protocol_3(kubelet: EmbeddedKubelet, prepared: Machine) -> None:
    """The extender promises the same of each GPU, which holds for a program that sees one of them, too.

    Other promises are refused in words.
    """
    async with limited(kubelet, prepared) as node:
        assert isinstance(node.status.phase, Serving)
        record = decode(encode(node_record(node.status.phase.snapshot)))
        offered, asked = recorded_node(NODE, record), memory(8, gpus="2")
        place = account(offered).place(asked, NODE)
        promise = promise_annotations(place, asked, offered, datetime.now(UTC))
        await node.run(Pod("pod", [container("main", 8)]), {"main": {0: 4, 1: 4}}, promise)
        await node.holds()
        (program,) = node.programs
        environment = as_on_the_host(program.started)
        for seen in ("0", "1"):
            with prepared.mps.program({**environment, "CUDA_VISIBLE_DEVICES": seen}) as narrow:
                assert narrow.memory_mib == [4096]
        uneven = Pod("uneven", [container("main", 4)])
        await node.bind(uneven, {"main": {0: 1, 1: 3}})
        with pytest.raises(AdmissionError, match="request the same amount of each GPU"):
            await kubelet.admit(uneven)
