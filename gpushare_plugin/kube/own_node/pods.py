"""The pods of this node, followed at the API server."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube.client import PODS, Client, Timing
from gpushare_plugin.kube.collection import (
    Collection,
    CollectionForbiddenError,
    Gone,
    Listed,
    Put,
    raise_forbidden,
)
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import MIRROR, claims_of, pod_of
from gpushare_plugin.ledger.annotations import (
    ACK_ALLOCATION,
    ALIYUN_ASSIGNED,
    ALIYUN_INDEX,
    ALLOCATION,
    LIMITS,
    MOST_CHARACTERS,
)
from gpushare_plugin.ledger.pod import Pod

_log = structlog.get_logger()

ASK_AGAIN = 300.0
"""Longest wait between two attempts after a refusal by RBAC, in seconds: rights can be granted at any time."""

CONSEQUENCE = "promises of a scheduler extender are not followed"
REMEDY = "grant list and watch of pods, and patch of pods/status (in the chart: cluster.followPods)"
"""The consequence of unknown pods, and the remedy for a missing right, for the log."""

_WRITTEN = (ALLOCATION, LIMITS, ALIYUN_INDEX, ALIYUN_ASSIGNED, ACK_ALLOCATION)

_LONGEST_UID = 64


class Patience:
    """Waits after refusals by RBAC: longer each time, and short again after `ASK_AGAIN` seconds without a refusal.

    An API server that has just started forbids everything until it knows the rights.
    """

    def __init__(self, timing: Timing) -> None:
        """Wait for `timing.first_wait` seconds at first."""
        self._backoff = Backoff(first=timing.first_wait, most=ASK_AGAIN)
        self._waited_at = 0.0

    async def wait(self) -> None:
        """Wait until the next attempt."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._waited_at > ASK_AGAIN:
            self._backoff.reset()
        await asyncio.sleep(self._backoff.next())
        self._waited_at = loop.time()


class OwnPods:
    """Follows the pods bound to one node."""

    def __init__(self, client: Client, node_name: str) -> None:
        """Follow the pods of the node `node_name`."""
        self._forbidden = Patience(client.timing)
        self._pods: dict[str, Pod] = {}
        self._order: tuple[Pod, ...] = ()
        self._arriving: dict[str, Pod] = {}  # by UID, until the first list is complete
        self._collection = Collection(
            client,
            PODS,
            ApiPod,
            consequence=CONSEQUENCE,
            selector=f"spec.nodeName={node_name}",
            forbidden=raise_forbidden,
        )
        self.changed = Published(0)
        """A number that is raised after each change of the pods."""
        self.answered = asyncio.Event()
        """Set once the pods are known, or the API server has refused to list them."""

    @property
    def live(self) -> bool:
        """Whether the list is complete and no failure of the watch is known."""
        return self._collection.live

    @property
    def in_order(self) -> Sequence[Pod]:
        """The pods in the order in which they were bound, terminating pods last.

        The pods of the first list are in the order of their creation.
        """
        return self._order

    def get(self, uid: str) -> Pod | None:
        """Return the pod with a UID, None for an unknown pod."""
        return self._pods.get(uid)

    @property
    def container_ids(self) -> Mapping[tuple[str, str, str], str]:
        """The IDs of all containers, by namespace, pod and container."""
        return {
            (pod.namespace, pod.name, container): id_
            for pod in self._pods.values()
            for container, id_ in pod.container_ids
        }

    async def follow(self) -> None:
        """Follow the pods; runs until cancelled. A missing right is logged once, with longer and longer waits."""
        told = False
        while True:
            try:
                await self._follow()
            except CollectionForbiddenError:
                self.answered.set()
                if not told:
                    _log.error(
                        "pods_forbidden",
                        path=PODS,
                        reason="list or watch is forbidden",
                        consequence=CONSEQUENCE,
                        remedy=REMEDY,
                    )
                told = True
                await self._forbidden.wait()

    async def _follow(self) -> None:
        async with aclosing(self._collection.changes()) as changes:
            async for change in changes:
                match change:
                    case Put(pod):
                        self._arriving[pod.metadata.uid] = _own(pod)
                        if self.answered.is_set():
                            self._take()
                    case Gone(uid=uid):
                        self._arriving.pop(uid, None)
                        self._pods.pop(uid, None)
                        self._publish()
                    case Listed():
                        self.answered.set()
                        self._take()

    def _take(self) -> None:
        """Take in the arrived pods, and publish a change if any kept value of a pod has changed.

        Most changes of a pod change no kept value. A list is sorted by name. This method sorts the pods by age, as the
        kubelet does with pods that arrive together.
        """
        arrived = sorted(self._arriving.values(), key=lambda pod: pod.created)
        self._arriving.clear()
        new = {pod.uid: pod for pod in arrived if self._pods.get(pod.uid) != pod}
        if new:
            self._pods |= new
            self._publish()

    def _publish(self) -> None:
        self._order = tuple(sorted(self._pods.values(), key=lambda pod: pod.ending))
        self.changed.publish(self.changed.value + 1)


def _own(found: ApiPod) -> Pod:
    """Return a pod of this node, with the annotations written by gpushare, and IDs and claims of the containers."""
    annotations = found.metadata.annotations
    # An annotation longer than any annotation of gpushare is overwritten in any case, so the first part is enough.
    written = tuple((key, annotations[key][: MOST_CHARACTERS + 1]) for key in _WRITTEN if key in annotations)
    statuses = (*found.status.init_container_statuses, *found.status.container_statuses)
    # `<runtime>://<ID>`
    ids = tuple((status.name, id_) for status in statuses if (id_ := status.container_id.rpartition("://")[2]))
    static_uid = annotations.get(MIRROR, "")[:_LONGEST_UID]
    claims = tuple(claims_of(found))
    return replace(pod_of(found), written=written, container_ids=ids, static_uid=static_uid, claims=claims)
