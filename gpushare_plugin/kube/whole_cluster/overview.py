"""The cluster for display to people: all Nodes and Pods, read once or followed, and the account of both."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TypeVar

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import nearest
from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.core.policies import DEFAULT_POLICY
from gpushare_plugin.kube.client import NODES, PODS, Client, ClusterError, decoded
from gpushare_plugin.kube.nodes import judged_node
from gpushare_plugin.kube.objects import ApiNode, ApiPod, Kept, Metadata
from gpushare_plugin.kube.pods import asks, pod_of
from gpushare_plugin.kube.whole_cluster.claims import ClaimsFollower, read_held
from gpushare_plugin.kube.whole_cluster.daemons import DaemonPod, daemon_pod
from gpushare_plugin.kube.whole_cluster.following import ClusterFollower, Objects
from gpushare_plugin.kube.whole_cluster.reading import PAGE, DecodedPage, Reading, answered, query_of
from gpushare_plugin.kube.whole_cluster.waiting import WaitingPod, waiting_pod
from gpushare_plugin.ledger.annotations import LIMITS, MOST_CHARACTERS
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.pod import Pod

_NOT_OVER = "status.phase!=Succeeded"
"""Selects all pods except succeeded pods, which run no container any more; a failed pod may still run containers."""


class Overview:
    """The account of a cluster, the pods that wait for slices, and the claims."""

    def __init__(self, policy: str = DEFAULT_POLICY) -> None:
        """Start empty; `policy` is the default policy of the scheduler extender."""
        self.account = ClusterAccount(policy)
        """The account of the cluster's GPUs."""
        self.waiting: dict[str, Pod] = {}
        """The pods waiting for slices, by UID."""
        self.without_node: dict[str, WaitingPod] = {}
        """The pods without a node that ask for extended resources or have ResourceClaims, by UID."""
        self.daemons: dict[str, DaemonPod] = {}
        """The running daemons of nodes in all namespaces, by the UID of the pod."""
        self.claims = ClusterClaims()
        """The GPUs that nodes give by claim, and what claims have of them."""
        self.followers: Sequence[ClusterFollower | ClaimsFollower] = ()
        """What keeps this like the cluster; none for a cluster that was read once."""

    @property
    def silence(self) -> float | None:
        """Seconds since the last answer of the API server where it does not answer now; None while it answers."""
        return max((each.silence for each in self.followers if each.silence is not None), default=None)

    @property
    def gives_by_claim(self) -> bool:
        """Whether a node gives GPUs by claim."""
        records = (node.record for node in self.account.nodes.values())
        return any(gpu.by_claim for record in records if record is not None for gpu in record.gpus)

    @property
    def needs_claims(self) -> bool:
        """Whether something of what is shown is not known without the claims of the cluster."""
        return self.gives_by_claim

    def put_node(self, node: Node) -> None:
        """Take in a new or changed node."""
        self.account.put_node(node)

    def remove_node(self, name: str) -> None:
        """Forget a Node."""
        self.account.remove_node(name)

    def put_pod(self, found: ApiPod) -> None:
        """Take in a new or changed Pod; of a Pod without a request for extended resources, only a daemon of a node."""
        if (daemon := daemon_pod(found)) is not None:
            self.daemons[found.metadata.uid] = daemon
        else:
            self.daemons.pop(found.metadata.uid, None)
        pod = _shown(found) if asks(found) else None
        if (waits := waiting_pod(found, pod)) is not None:
            self.without_node[found.metadata.uid] = waits
        else:
            self.without_node.pop(found.metadata.uid, None)
        if pod is None:
            return
        self.account.put_pod(pod)
        if pod.schedulable and pod.waits_for_slices and pod.slices:
            self.waiting[pod.uid] = pod
        else:
            self.waiting.pop(pod.uid, None)

    def remove_pod(self, uid: str) -> None:
        """Forget a Pod."""
        self.account.remove_pod(uid)
        self.waiting.pop(uid, None)
        self.without_node.pop(uid, None)
        self.daemons.pop(uid, None)


def _shown(found: ApiPod) -> Pod:
    """Return a pod with what the node's daemon wrote about its limits; too long a text stays too long."""
    pod, limits = pod_of(found), found.metadata.annotations.get(LIMITS)
    return pod if limits is None else replace(pod, written=((LIMITS, limits[: MOST_CHARACTERS + 1]),))


OverviewT = TypeVar("OverviewT", bound=Overview)


async def read(
    client: Client, names: Collection[str] = (), *, empty: Callable[[], OverviewT], labels: str = ""
) -> OverviewT:
    """Read the whole cluster or, with `names`, the named Nodes and their Pods, into the overview made by `empty`.

    With a label selector `labels`, of the Nodes only those that the selector selects. Returns the overview. Raises
    ClusterError in words for people.
    """
    try:
        return await _read(client, names, empty(), PAGE, labels)
    except ClusterError as error:
        if error.status != HTTPStatus.GONE:
            raise
        # The server has forgotten the version of the first page; only a list in one piece is sure to have one version.
        return await _read(client, names, empty(), 0, labels)


async def _read(client: Client, names: Collection[str], overview: OverviewT, page: int, labels: str) -> OverviewT:
    for of_node, of_pods in _selectors(names):
        nodes = Reading(client, NODES, ApiNode, of_node, page, labels)
        pods = Reading(client, PODS, ApiPod, of_pods, page)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(nodes.into(lambda found: overview.put_node(judged_node(found))))
                group.create_task(pods.into(overview.put_pod))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
    for name in names:
        if name not in overview.account.nodes:
            raise await _no_node(client, name, labels)
    return overview


class _NamedNode(Kept, frozen=True):
    metadata: Metadata = Metadata()


async def _no_node(client: Client, name: str, labels: str) -> ClusterError:
    """Return the error about a name that no node has, or no node with the labels, with the nearest name."""
    there: list[str] = []
    with suppress(ClusterError):  # a name is of help, and no need
        await Reading(client, NODES, _NamedNode, "", PAGE, labels).into(lambda node: there.append(node.metadata.name))
    meant = nearest(name, there)
    return ClusterError(
        f"found no node {name}{f' with the labels {labels}' if labels else ''}; "
        f"{f'did you mean {meant}? ' if meant else ''}`kubectl get nodes` lists those that there are",
        HTTPStatus.NOT_FOUND,
    )


def _selectors(names: Collection[str]) -> list[tuple[str, str]]:
    """Return a pair of field selectors of Nodes and Pods for each name, or one pair for the whole cluster."""
    of_names = [(f"metadata.name={name}", f"spec.nodeName={name},{_NOT_OVER}") for name in names]
    return of_names or [("", _NOT_OVER)]


async def read_all(client: Client, names: Collection[str] = (), labels: str = "") -> Overview:
    """Read the whole cluster or some Nodes as `read` does, and what claims have of GPUs given by claim."""
    overview = await read(client, names, empty=Overview, labels=labels)
    if overview.gives_by_claim:
        overview.claims = await read_held(client, names)
    return overview


async def follow(
    client: Client, names: Collection[str], every: float, labels: str = "", *, empty: Callable[[], OverviewT]
) -> AsyncGenerator[OverviewT, None]:
    """Yield the cluster, or the named Nodes and their Pods, and again after changes, at most once in `every` seconds.

    The overview is made by `empty`. With a label selector `labels`, of the Nodes only those that the selector selects.
    Raises ClusterError if the first read fails or if the server forbids the watch. Further failures are logged, and
    followed by another attempt.
    """
    await _try(client, names, labels)
    overview, news = empty(), asyncio.Event()
    forbidden: list[str] = []

    def refuse(what: str) -> None:
        forbidden.append(what)
        news.set()

    followers = [_follower(client, overview, each, labels, news.set, refuse) for each in _selectors(names)]
    claims = ClaimsFollower(client, names, overview.claims, news.set)
    overview.followers = [*followers, claims]
    following = [asyncio.create_task(follower.follow()) for follower in followers]
    try:
        for follower in followers:
            await follower.listed()
        while not forbidden:
            news.clear()
            if not claims.begun and overview.needs_claims:
                following.append(asyncio.create_task(claims.follow()))
                await claims.listed()
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


def _follower(  # noqa: PLR0913, PLR0917 - what is followed, and who is told
    client: Client,
    overview: Overview,
    selectors: tuple[str, str],
    labels: str,
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
        labels,
    )
    pods = Objects(ApiPod, overview.put_pod, lambda gone: overview.remove_pod(gone.uid), consequence, of_pods)
    return ClusterFollower(client, nodes, pods, page=PAGE, changed=changed, forbidden=forbidden)


async def _try(client: Client, names: Collection[str], labels: str) -> None:
    """Read one Node and one Pod per selector as a test; raises ClusterError in words for people."""
    for name, (of_node, of_pods) in zip(names or (None,), _selectors(names), strict=True):
        found = decoded(await answered(client, NODES, query_of(of_node, 1, labels)), DecodedPage[ApiNode], NODES)
        if name is not None and not found.items:
            raise await _no_node(client, name, labels)
        await answered(client, PODS, query_of(of_pods, 1))


async def read_pod(client: Client, namespace: str, name: str) -> ApiPod:
    """Read and return a pod; raises ClusterError in words for people."""
    # A list with one name, because the right to list pods is then enough.
    path, query = f"/api/v1/namespaces/{namespace}/pods", {"fieldSelector": f"metadata.name={name}"}
    answer = await answered(client, path, query)
    found = decoded(answer, DecodedPage[ApiPod], path).items
    if not found:
        raise ClusterError(
            f"found no pod {name} in namespace {namespace}; --namespace names another one, and "
            "`kubectl get pods --all-namespaces` lists all",
            HTTPStatus.NOT_FOUND,
        )
    return found[0]
