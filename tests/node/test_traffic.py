"""A whole node under random traffic: sessions, embedded kubelet, pods, restarts of either side."""

import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kubelet.allocations.pod_resources import list_pods
from gpushare_plugin.observe.node.report import report
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from tests.node.living import RUNS, gone
from tests.nodes import a_node
from tests.unit.kubelet.serving import running
from tests.unit.sharing.settings import GPU_MEM, memory, only, planned

MOST_UNITS = 12

sizes = st.integers(1, MOST_UNITS + 1)
containers = st.tuples(sizes, st.booleans())  # units, and whether an init container is a sidecar
pods = st.tuples(st.just("admit"), st.lists(containers, max_size=2), st.lists(containers, min_size=1, max_size=3))
deletions = st.tuples(st.just("delete"), st.integers(0, 30))
restarts = st.tuples(st.sampled_from(["restart kubelet", "kill kubelet", "restart daemon"]))
traffic = st.lists(st.one_of(pods, pods, pods, deletions, deletions, restarts), min_size=20, max_size=60)


@dataclass
class Node:
    """A node in traffic, and the test's own account of it, which knows nothing of how either side counts."""

    kubelet: EmbeddedKubelet
    resource: Resource
    placement: str
    held: dict[str, dict[str, set[str]]] = field(default_factory=dict)  # pod UID -> container -> IDs
    pods: list[Pod] = field(default_factory=list)
    recent: RecentAllocations = field(default_factory=RecentAllocations)

    def gpu(self, ids: set[str]) -> str:
        """Return the one GPU that `ids` sit on."""
        (gpu,) = {self.resource.units[id_].gpu for id_ in ids}
        return gpu

    def free(self) -> dict[str, int]:
        """Return the free units of each GPU."""
        free = dict(self.resource.units_of)
        for id_ in set().union(*(ids for pod in self.held.values() for ids in pod.values())):
            free[self.resource.units[id_].gpu] -= 1
        return free

    def lasting(self) -> set[str]:
        """Return the IDs that containers hold which do not end, as plain init containers do."""
        return {
            id_
            for pod in self.pods
            for container in pod.in_order()
            if container.restartable or container not in pod.init_containers
            for id_ in self.held[pod.uid][container.name]
        }

    def learn(self) -> None:
        """Have the daemon learn what containers have, now that the kubelet allocates nothing."""
        held = {(GPU_MEM, id_) for pod in self.held.values() for ids in pod.values() for id_ in ids}
        self.recent.learn(held, {GPU_MEM: self.recent.now.get(GPU_MEM, 0) + 1})

    async def ready(self) -> None:
        """Wait until the kubelet counts every unit as healthy."""
        await self.kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == len(self.resource.units))


def fits(node: Node, pod: Pod) -> bool:
    """Tell whether a pod can be placed, container by container, as the kubelet goes about it.

    Devices of plain init containers are used again by the containers after them, and bind these to their GPU.
    """
    free = node.free()
    bound: str | None = None
    reusable = 0
    for container in pod.in_order():
        size = container.limits[GPU_MEM]
        more = max(0, size - reusable)
        if more:
            if bound is None or not reusable:
                able = [gpu for gpu, units in free.items() if units >= size]
                if not able:
                    return False
                order = min if node.placement == "binpack" else max
                bound = order(able, key=lambda gpu: (free[gpu], 0))
            elif free[bound] < more:
                return False
            free[bound] -= more
        is_init = container in pod.init_containers
        reusable = max(reusable, size) if is_init and not container.restartable else max(0, reusable - size)
    return True


def a_pod(number: int, init: list[tuple[int, bool]], main: list[tuple[int, bool]]) -> Pod:
    """Return a pod whose containers ask for so many units."""
    return Pod(
        f"pod-{number}",
        [Container(f"main-{index}", {GPU_MEM: size}) for index, (size, _) in enumerate(main)],
        [
            Container(f"init-{index}", {GPU_MEM: size}, restartable=sidecar)
            for index, (size, sidecar) in enumerate(init)
        ],
    )


async def admit(node: Node, pod: Pod) -> None:
    """Let a pod in and check what it got; a refusal must be one that nothing could avoid."""
    expected = fits(node, pod)
    node.learn()
    try:
        admitted = await node.kubelet.admit(pod)
    except AdmissionError as error:
        if expected:
            raise AssertionError(f"refused, though it fits; free: {node.free()}") from error
        return
    assert expected
    node.pods.append(pod)
    node.held[pod.uid] = {}
    for container in pod.in_order():
        started = admitted.containers[container.name]
        ids = set(started.device_ids[GPU_MEM])
        node.held[pod.uid][container.name] = ids
        assert len(ids) == container.limits[GPU_MEM]
        assert started.environment["NVIDIA_VISIBLE_DEVICES"] == node.gpu(ids)
        assert started.environment["GPUSHARE_MEMORY_LIMIT_MIB"] == str(1024 * len(ids))


async def check_accounts(node: Node) -> None:
    """Compare what the pods hold, what the kubelet counts, and what the daemon would report."""
    owners: dict[str, str] = {}
    for uid, held in node.held.items():
        for ids in held.values():
            for id_ in ids:
                assert owners.setdefault(id_, uid) == uid, f"{id_} was given to two pods"
    assert all(units >= 0 for units in node.free().values())
    holdings = (await list_pods(node.kubelet.pod_resources_socket)).holdings
    shown = {id_ for holding in holdings for id_ in holding.ids}
    seen = report(Snapshot(Inventory(tuple(node.resource.gpus.values())), (node.resource,), holdings=holdings))
    assert node.kubelet.allocated(GPU_MEM) == set(owners)
    assert shown <= set(owners)
    # Init containers that ended are not shown; everything else is, and on the right GPU.
    lasting = node.lasting()
    assert {gpu.uuid: gpu.used for gpu in seen.gpus} == {
        uuid: sum(1 for id_ in lasting if node.resource.units[id_].gpu == uuid) for uuid in node.resource.gpus
    }


@asynccontextmanager
async def a_running_node(memory_gib: list[int], placement: str, seed: int) -> AsyncIterator[tuple[Node, "Daemon"]]:
    """Run a node with GPUs of these sizes; the kubelet draws at random from `seed`."""
    resource = only(planned(a_node(*(size * 1024 for size in memory_gib)), sharing=memory(placement=placement)))
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder:
        # The kubelet limits how often it is asked what pods hold; a faster clock allows for checks after every step.
        kubelet = EmbeddedKubelet(Path(folder), rng=random.Random(seed), clock=lambda: 20 * time.monotonic())  # noqa: S311 - no secret
        node = Node(kubelet, resource, placement)
        async with kubelet, AsyncExitStack() as stack:
            daemon = Daemon(node, stack)
            await daemon.start()
            yield node, daemon


class Daemon:
    """The sessions of a node, which can be restarted."""

    def __init__(self, node: Node, stack: AsyncExitStack) -> None:
        """Run the sessions in `stack`."""
        self._node = node
        self._stack = stack

    async def start(self) -> None:
        """Serve, and wait until the kubelet counts every unit."""
        await self._stack.enter_async_context(
            running(self._node.kubelet.plugin_directory, self._node.resource, recent=self._node.recent)
        )
        await self._node.ready()

    async def restart(self) -> None:
        """Stop, until the kubelet noticed; serve again."""
        await self._stack.aclose()
        await gone(self._node.kubelet)
        await self.start()


async def step(node: Node, daemon: Daemon, number: int, action: tuple[Any, ...]) -> None:
    """Do one thing that happens on a node."""
    match action:
        case ("admit", init, main):
            await admit(node, a_pod(number, init, main))
        case ("delete", which) if node.pods:
            pod = node.pods.pop(which % len(node.pods))
            node.kubelet.delete(pod)
            del node.held[pod.uid]
        case ("restart daemon",):
            await daemon.restart()
        case ("restart kubelet" | "kill kubelet" as how,):
            await node.kubelet.restart(graceful=how == "restart kubelet")
            await node.ready()


# A failing run is reported as it is: shrinking it would repeat minutes of traffic.
@settings(max_examples=RUNS, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.lists(st.integers(1, MOST_UNITS), min_size=1, max_size=4),
    st.sampled_from(["binpack", "spread"]),
    st.integers(0, 2**32),
    traffic,
)
async def test_accounts_agree_whatever_happens(
    memory_gib: list[int], placement: str, seed: int, actions: list[tuple[Any, ...]]
) -> None:
    """Hundreds of pods on random nodes, with deletions and restarts of either side; `GPUSHARE_NODE_RUNS` makes more.

    No GPU is ever given more units than it has, no container's memory spans GPUs, nothing that fits one GPU is
    refused, and pods, kubelet and daemon agree on who holds what at every step.
    """
    async with a_running_node(memory_gib, placement, seed) as (node, daemon):
        for number, action in enumerate(actions):
            await step(node, daemon, number, action)
            await check_accounts(node)
