"""The cluster for display to people: all Nodes and Pods, read once or followed, and the account of both."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from http import HTTPStatus
from typing import Generic, TypeVar

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.policies import DEFAULT_POLICY
from gpushare_plugin.kube.client import NODES, PODS, Client, ClusterError, Timing, decoded
from gpushare_plugin.kube.nodes import judged_node
from gpushare_plugin.kube.objects import ApiNode, ApiPod, Kept, ListMetadata
from gpushare_plugin.kube.pods import asks, pod_of
from gpushare_plugin.kube.whole_cluster.following import ClusterFollower, Objects
from gpushare_plugin.ledger.annotations import LIMITS, MOST_CHARACTERS
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.pod import Pod

T = TypeVar("T")

PAGE = 1000
"""Number of objects in a page: twice as many as with kubectl, because each page takes a round trip."""


ATTEMPTS = 5
"""Largest number of requests for one answer while the API server is overloaded (429)."""

LONGEST_PAUSE = 10.0
"""Longest wait between two requests, in seconds, because people wait. The API server itself requests one second."""

PATIENT = Timing(request=60.0)
"""The API server's own time limit for a request: a page can have 20 MiB, and a person's connection can be slow."""

_WITH_KUBECONFIG: Mapping[int | None, str] = {
    None: "; check the kubeconfig, and whether its server can be reached from here: `kubectl get nodes`",
    HTTPStatus.UNAUTHORIZED: "; the API server does not accept the credentials of the kubeconfig: log in again, or "
    "choose another --context",
    HTTPStatus.FORBIDDEN: "; this needs the right to list {} in the whole cluster: see the ClusterRole in "
    "docs/inspect.md",
}
"""What people can do about an error of the API server, by its HTTP status, None without an answer."""

_ELSEWHERE = "run this in a pod of the scheduler extender, or with a kubeconfig (docs/inspect.md)"
_IN_POD: Mapping[int | None, str] = {
    None: "; this needs the token of a service account in this pod, and a connection to the API server: otherwise "
    f"{_ELSEWHERE}",
    HTTPStatus.UNAUTHORIZED: f"; the API server does not accept the token of this pod's service account: {_ELSEWHERE}",
    HTTPStatus.FORBIDDEN: "; this needs the right to list {} in the whole cluster, which the service account of this "
    f"pod does not have: {_ELSEWHERE}",
}
"""The same within a pod, whose service account asks."""

_NOT_OVER = "status.phase!=Succeeded"
"""Selects all pods except succeeded pods, which run no container any more; a failed pod may still run containers."""


class Overview:
    """The account of a cluster, and the pods that wait for slices."""

    def __init__(self, policy: str = DEFAULT_POLICY) -> None:
        """Start empty; `policy` is the default policy of the scheduler extender."""
        self.account = ClusterAccount(policy)
        """The account of the cluster's GPUs."""
        self.waiting: dict[str, Pod] = {}
        """The pods waiting for slices, by UID."""

    def put_node(self, node: Node) -> None:
        """Take in a new or changed node."""
        self.account.put_node(node)

    def remove_node(self, name: str) -> None:
        """Forget a Node."""
        self.account.remove_node(name)

    def put_pod(self, found: ApiPod) -> None:
        """Take in a new or changed Pod, and ignore a Pod without a request for extended resources."""
        if not asks(found):
            return
        pod = _shown(found)
        self.account.put_pod(pod)
        if pod.schedulable and pod.waits_for_slices and pod.slices:
            self.waiting[pod.uid] = pod
        else:
            self.waiting.pop(pod.uid, None)

    def remove_pod(self, uid: str) -> None:
        """Forget a Pod."""
        self.account.remove_pod(uid)
        self.waiting.pop(uid, None)


def _shown(found: ApiPod) -> Pod:
    """Return a pod with what the node's daemon wrote about its limits; too long a text stays too long."""
    pod, limits = pod_of(found), found.metadata.annotations.get(LIMITS)
    return pod if limits is None else replace(pod, written=((LIMITS, limits[: MOST_CHARACTERS + 1]),))


OverviewT = TypeVar("OverviewT", bound=Overview)


async def read(client: Client, names: Collection[str] = (), *, empty: Callable[[], OverviewT]) -> OverviewT:
    """Read the whole cluster or, with `names`, the named Nodes and their Pods, into the overview made by `empty`.

    Returns the overview. Raises ClusterError in words for people.
    """
    try:
        return await _read(client, names, empty(), PAGE)
    except ClusterError as error:
        if error.status != HTTPStatus.GONE:
            raise
        # The server has forgotten the version of the first page; only a list in one piece is sure to have one version.
        return await _read(client, names, empty(), 0)


async def _read(client: Client, names: Collection[str], overview: OverviewT, page: int) -> OverviewT:
    for of_node, of_pods in _selectors(names):
        nodes = _Reading(client, NODES, ApiNode, of_node, page)
        pods = _Reading(client, PODS, ApiPod, of_pods, page)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(nodes.into(lambda found: overview.put_node(judged_node(found))))
                group.create_task(pods.into(overview.put_pod))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
    for name in names:
        if name not in overview.account.nodes:
            raise _no_node(name)
    return overview


def _no_node(name: str) -> ClusterError:
    return ClusterError(f"found no node {name}; `kubectl get nodes` lists those that there are", HTTPStatus.NOT_FOUND)


def _selectors(names: Collection[str]) -> list[tuple[str, str]]:
    """Return a pair of field selectors of Nodes and Pods for each name, or one pair for the whole cluster."""
    of_names = [(f"metadata.name={name}", f"spec.nodeName={name},{_NOT_OVER}") for name in names]
    return of_names or [("", _NOT_OVER)]


async def follow(client: Client, names: Collection[str], every: float) -> AsyncGenerator[Overview, None]:
    """Yield the cluster, or the named Nodes and their Pods, and again after changes, at most once in `every` seconds.

    Raises ClusterError if the first read fails or if the server forbids the watch. Further failures are logged, and
    followed by another attempt.
    """
    await _try(client, names)
    overview, news = Overview(), asyncio.Event()
    forbidden: list[str] = []

    def refuse(what: str) -> None:
        forbidden.append(what)
        news.set()

    followers = [_follower(client, overview, selectors, news.set, refuse) for selectors in _selectors(names)]
    following = [asyncio.create_task(follower.follow()) for follower in followers]
    try:
        for follower in followers:
            await follower.listed()
        while not forbidden:
            news.clear()
            yield overview
            await asyncio.sleep(every)
            await news.wait()
        raise _may_not_watch(forbidden[0])
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


def _may_not_watch(what: str) -> ClusterError:
    return ClusterError(
        f"this needs the right to list and watch {what} in the whole cluster: see the ClusterRole in docs/inspect.md; "
        "without --watch, the right to list is enough",
        HTTPStatus.FORBIDDEN,
    )


def _follower(
    client: Client,
    overview: Overview,
    selectors: tuple[str, str],
    changed: Callable[[], None],
    forbidden: Callable[[str], None],
) -> ClusterFollower:
    """Return a follower that keeps an overview up to date with the Nodes and Pods of two field selectors."""
    consequence = "what is shown is as old as the last answer"
    of_node, of_pods = selectors
    nodes = Objects(
        ApiNode,
        lambda found: overview.put_node(judged_node(found)),
        lambda gone: overview.remove_node(gone.name),
        consequence,
        of_node,
    )
    pods = Objects(ApiPod, overview.put_pod, lambda gone: overview.remove_pod(gone.uid), consequence, of_pods)
    return ClusterFollower(client, nodes, pods, page=PAGE, changed=changed, forbidden=forbidden)


async def _try(client: Client, names: Collection[str]) -> None:
    """Read one Node and one Pod per selector as a test; raises ClusterError in words for people."""
    for name, (of_node, of_pods) in zip(names or (None,), _selectors(names), strict=True):
        found = decoded(await _answered(client, NODES, _query(of_node, 1)), _DecodedPage[ApiNode], NODES)
        if name is not None and not found.items:
            raise _no_node(name)
        await _answered(client, PODS, _query(of_pods, 1))


async def read_pod(client: Client, namespace: str, name: str) -> ApiPod:
    """Read and return a pod; raises ClusterError in words for people."""
    # A list with one name, because the right to list pods is then enough.
    path, query = f"/api/v1/namespaces/{namespace}/pods", {"fieldSelector": f"metadata.name={name}"}
    answer = await _answered(client, path, query)
    found = decoded(answer, _DecodedPage[ApiPod], path).items
    if not found:
        raise ClusterError(
            f"found no pod {name} in namespace {namespace}; --namespace names another one, and "
            "`kubectl get pods --all-namespaces` lists all",
            HTTPStatus.NOT_FOUND,
        )
    return found[0]


class _DecodedPage(Kept, Generic[T], frozen=True):
    """A page of a list, decoded in one step: people wait, and should see the error of a broken object."""

    metadata: ListMetadata = ListMetadata()
    """The version of the list and the token of the next page."""
    items: list[T] | None = None
    """The decoded objects."""


class _Reading(Generic[T]):
    """Reads a collection once, in pages of `page` objects, or in one piece for 0."""

    def __init__(self, client: Client, path: str, kind: type[T], selector: str, page: int) -> None:
        self._client = client
        self._path = path
        self._query = _query(selector, page)
        self._kind = _DecodedPage[kind]  # type: ignore[valid-type]

    async def into(self, put: Callable[[T], None]) -> None:
        """Pass all objects to `put` while the next page is on its way; raises ClusterError."""
        asked: asyncio.Task[_DecodedPage[T]] | None = asyncio.create_task(self._page({}))
        try:
            while asked is not None:
                page = await asked
                token = page.metadata.continue_
                asked = asyncio.create_task(self._page({"continue": token})) if token else None
                await asyncio.sleep(0)  # the next request goes out before the work on this page
                for each in page.items or ():
                    put(each)
        finally:
            if asked is not None:
                asked.cancel()

    async def _page(self, more: Mapping[str, str]) -> _DecodedPage[T]:
        return decoded(await _answered(self._client, self._path, {**self._query, **more}), self._kind, self._path)


def _query(selector: str, page: int) -> dict[str, str]:
    return {**({"fieldSelector": selector} if selector else {}), **({"limit": str(page)} if page else {})}


async def _answered(client: Client, path: str, query: Mapping[str, str]) -> bytes:
    """Return the answer to a request; raises ClusterError with a remedy for people."""
    try:
        return await _in_turn(client, path, query)
    except ClusterError as error:
        if error.status == HTTPStatus.GONE:
            raise
        remedy = (_IN_POD if client.in_pod else _WITH_KUBECONFIG).get(error.status, "")
        raise ClusterError(f"{error}{remedy.format(path.rpartition('/')[2])}", error.status) from error


async def _in_turn(client: Client, path: str, query: Mapping[str, str]) -> bytes:
    """Return the answer to a request, asking an overloaded API server again; raises ClusterError."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await client.request("GET", path, query)
        except ClusterError as error:
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            await asyncio.sleep(min(1.0 if error.retry_after is None else error.retry_after, LONGEST_PAUSE))
    return await client.request("GET", path, query)
