"""The API-server double with a large cluster, as a process: `python -m benchmarks.cluster.api_server`.

Arguments: the file for the kubeconfig, the nodes, and the pods a second that end while as many others start, from
SIGUSR1 until SIGUSR2.
"""

import asyncio
import gc
import itertools
import signal
import sys
from pathlib import Path

from benchmarks.cluster.objects import NAMESPACE, a_node, pods_of
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer, Store

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

_STRIDE = 7919
"""A prime: its multiples reach every node before any comes twice."""


async def serve(kubeconfig: Path, nodes: int, rate: float) -> None:
    """Serve until killed."""
    store = Store()
    for number in range(nodes):
        store.create(NODES, a_node(number))
        for pod in pods_of(number):
            store.create(PODS, pod)
    store.forget()
    # To look through millions of objects for garbage, of which there is hardly any, would hold up all who ask.
    gc.disable()
    busy = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, busy.set)
    loop.add_signal_handler(signal.SIGUSR2, busy.clear)
    async with ApiServer(store=store) as server:
        server.kubeconfig(kubeconfig.with_suffix(".new")).rename(kubeconfig)
        await come_and_go(store, nodes, rate, busy)


async def come_and_go(store: Store, nodes: int, rate: float, busy: asyncio.Event) -> None:
    """Delete a pod and start its successor on the same GPU, `rate` times a second, on one node after another."""
    for number in itertools.count():
        await busy.wait()
        node, turn = _STRIDE * number % nodes, number // nodes
        if pods := pods_of(node):
            pod = pods[turn % len(pods)]
            name = pod["metadata"]["name"]
            store.delete(PODS, name)
            store.create(PODS, pod)
        await asyncio.sleep(1 / rate)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
