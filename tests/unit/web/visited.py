"""Pages in a cluster, within the test's own process, with users of the API server who look at them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gpushare_plugin.base.tasks import beside
from gpushare_plugin.ledger.annotations import write_allocation
from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.people import Person
from gpushare_plugin.web.in_cluster import ClusterWebSettings, serve
from tests.process.test_inspect import MEMORY, a_node
from tests.unit.kube.pods import pod
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.waiting import PATIENCE

ALICE = Person("alice", frozenset({"red"}))
"""May see the pages, and list the pods of one namespace."""
OLGA = Person("olga", None)
"""May see the pages, and list the pods of all namespaces."""
MALLORY = Person("mallory", None, paths=frozenset())
"""May list all pods, but not see the pages."""

TOKENS = {"token-of-alice": ALICE, "token-of-olga": OLGA, "token-of-mallory": MALLORY}


def a_cluster(server: ApiServer) -> None:
    """Create a node of two GPUs, with a pod of `red` and a pod of `blue`, and the users."""
    a_node(server, "gpu-1", encode(recorded(gpu("gpu-1", 0), gpu("gpu-1", 1))))
    in_namespace(server, "red", "red-pod", "GPU-gpu-1-0")
    in_namespace(server, "blue", "blue-pod", "GPU-gpu-1-1")
    server.people.tokens |= TOKENS


def in_namespace(server: ApiServer, namespace: str, name: str, on: str) -> None:
    """Create a pod of a namespace that has 3 units of a GPU of the node."""
    made: dict[str, Any] = pod(name, "gpu-1", "3")
    made["metadata"] |= {"namespace": namespace, "uid": f"uid-{name}"}
    made["metadata"]["annotations"] = {"gpushare/allocation": allocation(on)}
    server.store.create(f"/api/v1/namespaces/{namespace}/pods", made)


def allocation(on: str) -> str:
    """Return the annotation of a pod with 3 units of a GPU."""
    return write_allocation((Share("main", MEMORY, on, 3),))


@asynccontextmanager
async def visited(server: ApiServer, folder: Path, **settings: Any) -> AsyncIterator[str]:
    """Show the cluster of a server, and yield the address of the pages."""
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    kubeconfig = server.kubeconfig(folder / "kubeconfig")
    wanted = ClusterWebSettings("127.0.0.1:0", kubeconfig=kubeconfig, started=started.set_result, **settings)
    async with beside(serve(wanted)) as serving:
        async with asyncio.timeout(PATIENCE):
            port = await started
        yield f"{'https' if wanted.certificates else 'http'}://127.0.0.1:{port}"
        serving.cancel()


async def asked(address: str, token: str | None = None, **more: Any) -> tuple[int, str]:
    """Ask for a page, and return status and text of the answer."""
    headers = {**more.pop("headers", {}), **({} if token is None else {"Authorization": f"Bearer {token}"})}
    async with aiohttp.ClientSession() as session, session.get(address, headers=headers, **more) as answer:
        return answer.status, await answer.text()
