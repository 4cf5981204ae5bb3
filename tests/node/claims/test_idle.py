"""A node that gives GPUs by claim, on which nothing happens for an hour."""

import asyncio
from pathlib import Path

from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.node.daemon import Daemon, Membership, serve
from gpushare_plugin.testing.claims.errors import AllocationError
from gpushare_plugin.testing.kubelet import Pod
from tests.cluster.tasks import alongside
from tests.moving import MovedLoop
from tests.node.claims.node import DRIVER, SLICES, ClaimNode, claim_node
from tests.nodes import Cards, a_node
from tests.unit.kube.cluster import NODE
from tests.waiting import until

HAMI = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: hami-core}]}}"
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
AN_HOUR, SETTLING, STEP = 3600.0, 60.0, 2.0


def daemon(node: ClaimNode) -> Daemon:
    """Return the daemon of a node, with a card of 80 GiB."""
    cards = Cards(a_node(81920))
    return Daemon(
        Configs(file=node.file),
        lambda _: cards,
        node.kubelet.plugin_directory,
        node.kubelet.pod_resources_socket,
        membership=Membership(NODE, node.server.kubeconfig(node.folder / "kubeconfig"), follow_pods=True, events=True),
        claim_specs=node.cdi,
    )


def writes(node: ClaimNode, since: int) -> list[tuple[str, str]]:
    """Return the writes that the API server was asked for since a request of that number."""
    return [(each.verb, each.resource) for each in node.server.asked[since:] if each.verb in WRITES]


async def passes(loop: MovedLoop, client: Client, seconds: float) -> None:
    """Move the time on in steps, each of which ends after an answer of the API server, so that others got theirs."""
    for _ in range(int(seconds / STEP)):
        loop.move(STEP)
        await client.list(NODES, NODE)


async def settled(node: ClaimNode, loop: MovedLoop, client: Client) -> None:
    """Move the time on until nothing was written for a while: looks in threads take time that no test moves."""
    begun = -1
    while begun < 0 or writes(node, begun):
        begun = len(node.server.asked)
        await passes(loop, client, SETTLING)


def scheduled(node: ClaimNode, pod: Pod) -> bool:
    """Return whether a pod gets its devices now; kube-scheduler tries again, too."""
    try:
        node.scheduler.schedule(pod)
    except AllocationError:
        return False
    return True


async def idle(folder: Path, loop: MovedLoop) -> None:
    """Have a claim prepared, let an hour pass, and see that the daemon still mends ResourceSlices."""
    async with claim_node(folder) as node, Client(node.server.kubeconfig(folder / "test.conf")) as client:
        node.configure(HAMI)
        async with alongside(serve(daemon(node))):
            await node.kubelet.wait_for(lambda kubelet: DRIVER in kubelet.connected_drivers)
            # The kubelet deletes all ResourceSlices of the node once after its start.
            pod = node.pod("pod", {"memory": "10Gi"})
            await until(lambda: node.wiped and scheduled(node, pod))
            await node.kubelet.admit(pod)
            await until(lambda: node.claim(pod)["status"].get("devices"))
            await settled(node, loop, client)
            begun = len(node.server.asked)
            await passes(loop, client, AN_HOUR)
            assert writes(node, begun) == []
            for each in node.server.store.find(SLICES):
                node.server.store.delete(SLICES, each["metadata"]["name"])
            await until(lambda: node.free)
            assert {resource for _, resource in writes(node, begun)} == {"resourceslices"}


def test_an_hour_without_a_write(short_path: Path) -> None:
    """Nothing is written to the API server, whatever the daemon looks at again; ResourceSlices are mended afterwards.

    The heartbeat of the condition of the Node, which a daemon without claims has, too, goes by the time of day, which
    the test does not move.
    """
    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, MovedLoop)
        runner.run(idle(short_path, loop))
