"""Makes Kubernetes Events about the Node or a pod from news."""

import asyncio
from collections.abc import Callable, Iterable
from functools import singledispatchmethod

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.usage import ContainerUsage
from gpushare_plugin.kube.events.event import Event, of_node, of_pod
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.node.news import news
from gpushare_plugin.observe import events as kinds
from gpushare_plugin.observe.events import EventKind

_MOST_GPUS = 4
"""The most GPUs named in a message."""

Flush = Callable[[], None]


def _soon(flush: Flush) -> None:
    asyncio.get_running_loop().call_soon(flush)


class NewsEvents:
    """Makes Events of the news for people who look at Nodes and pods; the log has all news.

    The same news about several GPUs at once makes one Event: on a node with many GPUs, a change would otherwise exhaust
    the number of Events allowed for the Node.
    """

    def __init__(self, node_name: str, put: Callable[[Event], None], soon: Callable[[Flush], None] = _soon) -> None:
        """Pass Events to `put`; Events without a pod are about the Node of this name.

        `soon` calls a function after all simultaneous news has arrived.
        """
        self._node = of_node(node_name)
        self._put = put
        self._soon = soon
        self._gpus: dict[tuple[EventKind, str], list[str]] = {}

    @singledispatchmethod
    def publish(self, item: news.NewsItem) -> None:
        """Make the Event of a news item; ignore news of a type without an Event."""

    # ------------------------------------------------------------------ GPUs

    @publish.register
    def _(self, item: news.NoGpuYet) -> None:
        self._of_node(kinds.NO_GPU, f"no usable GPU: {item.reason}")

    @publish.register
    def _(self, item: news.GpuLeftOut) -> None:
        self._of_node(kinds.GPU_LEFT_OUT, f"{item.gpu.identity} is left out: {item.gpu.reason}")

    @publish.register
    def _(self, item: news.GpuUnhealthy) -> None:
        reset = "; it needs a reset" if item.until_reset else ""
        self._of_gpu(kinds.GPU_UNHEALTHY, item.uuid, f"unhealthy: {item.reason}{reset}")

    @publish.register
    def _(self, item: news.GpuRecovered) -> None:
        self._of_gpu(kinds.GPU_HEALTHY, item.uuid, "healthy again")

    @publish.register
    def _(self, item: news.GpuCordoned) -> None:
        self._of_gpu(kinds.GPU_CORDONED, item.uuid, item.reason)

    @publish.register
    def _(self, item: news.GpuUncordoned) -> None:
        self._of_gpu(kinds.GPU_UNCORDONED, item.uuid, "no longer cordoned")

    @publish.register
    def _(self, item: news.GpuNotServedByMps) -> None:
        self._of_gpu(kinds.MPS_NOT_SERVING, item.uuid, f"cannot be allocated because of MPS: {item.reason}")

    @publish.register
    def _(self, item: news.GpuServedByMps) -> None:
        self._of_gpu(kinds.MPS_SERVING, item.uuid, "MPS no longer prevents that it is allocated")

    @publish.register
    def _(self, item: news.GpuNotLimited) -> None:
        self._of_gpu(kinds.DRIVER_LIMITS_NOT_SET, item.uuid, f"cannot be allocated: {item.reason}")

    @publish.register
    def _(self, item: news.GpuLimited) -> None:
        self._of_gpu(kinds.DRIVER_LIMITS_SET, item.uuid, "driver limits no longer prevent allocation")

    @publish.register
    def _(self, item: news.GpuWaiting) -> None:
        self._of_gpu(kinds.SHARING_MODE_PENDING, item.uuid, f"not shared as configured yet: {item.reason}")

    @publish.register
    def _(self, item: news.GpuModeChanged) -> None:
        self._of_gpu(
            kinds.SHARING_MODE_CHANGED, item.uuid, f"shared as configured now, with isolation {item.isolation}"
        )

    @publish.register
    def _(self, item: news.GpuIsolationNotFirst) -> None:
        self._of_gpu(kinds.ISOLATION_NOT_FIRST, item.uuid, item.words)

    @publish.register
    def _(self, item: news.GpusGivenByClaim) -> None:
        self._of_node(kinds.GPUS_GIVEN_BY_CLAIM, f"{some_of(item.uuids, _MOST_GPUS)}: given by claim from now on")

    @publish.register
    def _(self, item: news.GpusLeftClaims) -> None:
        self._of_node(kinds.GPUS_LEFT_CLAIMS, f"{some_of(item.uuids, _MOST_GPUS)}: no claim can have them any more")

    @publish.register
    def _(self, item: news.GpusNotOfferedToClaims) -> None:
        self._of_node(kinds.GPUS_NOT_OFFERED_TO_CLAIMS, f"claims do not get all GPUs that they should: {item.reason}")

    @publish.register
    def _(self, item: news.GpusOfferedToClaims) -> None:
        if item.again:
            self._of_node(kinds.GPUS_OFFERED_TO_CLAIMS, f"claims get all GPUs that they should: {item.count} devices")

    @publish.register
    def _(self, item: news.RequestRejected) -> None:
        self._of_node(kinds.ALLOCATION_REFUSED, f"{item.call} refused: {item.reason}")

    # ------------------------------------------------------------------ who uses what

    @publish.register
    def _(self, item: news.PodOverLimit) -> None:
        self._of_pod(kinds.GPU_MEMORY_EXCEEDED, item.usage, "")

    @publish.register
    def _(self, item: news.PodWithinLimit) -> None:
        self._of_pod(kinds.GPU_MEMORY_WITHIN_LIMIT, item.usage, "; it is within its limit again")

    @publish.register
    def _(self, item: news.PodEvicted) -> None:
        self._of_pod(kinds.GPU_MEMORY_EVICTED, item.usage, "; the pod was evicted")

    @publish.register
    def _(self, item: news.EvictionRefused) -> None:
        self._of_pod(kinds.EVICTION_REFUSED, item.usage, f"; the pod was not evicted: {item.reason}")

    @publish.register
    def _(self, item: news.LimitNotInEffect) -> None:
        self._of_limit(kinds.LIMIT_NOT_IN_EFFECT, item.usage)

    @publish.register
    def _(self, item: news.LimitInEffect) -> None:
        # The limit may have been in effect from the start, and was removed meanwhile.
        late = item.usage.effect.seconds if item.usage.effect else None
        found = None if late is None else f"in effect now, as set {late:.0f} s after the start of the container"
        self._of_limit(kinds.LIMIT_IN_EFFECT, item.usage, found)

    @publish.register
    def _(self, item: news.StowawayFound) -> None:
        found = item.process
        regarding, whose = self._node, f" of {found.whose}"
        if found.pod and found.pod_uid:
            namespace, _, name = found.pod.partition("/")
            regarding, whose = of_pod(namespace, name, found.pod_uid), ""
        process = f"process {found.pid}" + (f" ({found.program})" if found.program else "")
        self._event(
            kinds.FOREIGN_PROCESS, regarding, f"{process}{whose} uses {found.gpu} without units or a claim of it"
        )

    # ------------------------------------------------------------------ configs

    @publish.register
    def _(self, item: news.ConfigChanged) -> None:
        changes = "; ".join(item.changes) or "no setting differs"
        self._of_node(kinds.CONFIG_APPLIED, f"another config is in effect: {changes}")

    @publish.register
    def _(self, item: news.ConfigRejected) -> None:
        self._refused(kinds.CONFIG_REJECTED, "the previous config stays in effect", item.problems)

    @publish.register
    def _(self, item: news.LabelConfigRejected) -> None:
        self._refused(kinds.CONFIG_REJECTED, "the config that the node label names is not used", item.problems)

    @publish.register
    def _(self, item: news.ConfigDoesNotFitGpus) -> None:
        self._refused(kinds.CONFIG_UNFIT, "GPUs stay shared as before", item.problems)

    @publish.register
    def _(self, item: news.ConfigUnreadable) -> None:
        self._refused(kinds.CONFIG_UNREADABLE, "the previous config stays in effect", [item.reason])

    @publish.register
    def _(self, _item: news.ConfigReadable) -> None:
        self._of_node(kinds.CONFIG_VALID, "the config can be read again")

    @publish.register
    def _(self, _item: news.ConfigValidAgain) -> None:
        self._of_node(kinds.CONFIG_VALID, "the config is valid again, and the same as the one in effect")

    # ------------------------------------------------------------------

    def _refused(self, kind: EventKind, consequence: str, problems: Iterable[str]) -> None:
        self._of_node(kind, f"{consequence}: {'; '.join(problems)}")

    def _of_gpu(self, kind: EventKind, uuid: str, message: str) -> None:
        if not self._gpus:
            self._soon(self._flush)
        self._gpus.setdefault((kind, message), []).append(uuid)

    def _flush(self) -> None:
        together, self._gpus = self._gpus, {}
        for (kind, message), uuids in together.items():
            self._of_node(kind, f"{some_of(uuids, _MOST_GPUS)}: {message}")

    def _of_node(self, kind: EventKind, message: str) -> None:
        self._event(kind, self._node, message)

    def _of_pod(self, kind: EventKind, usage: ContainerUsage, ending: str) -> None:
        used, limit = (_mib(memory) for memory in (usage.used, usage.limit))
        known = f" ({usage.effect.words})" if usage.effect else ""
        what = f"memory of {usage.gpu} in use by {_container(usage)}: {used}, limit ({usage.resource}): {limit}{known}"
        self._event(kind, of_pod(usage.namespace, usage.pod, usage.uid), f"{what}{ending}")

    def _of_limit(self, kind: EventKind, usage: ContainerUsage, found: str | None = None) -> None:
        found = found or (usage.effect.words if usage.effect else "unknown")
        message = f"limit of {_container(usage)} on {usage.gpu} ({usage.resource}, {_mib(usage.limit)}): {found}"
        self._event(kind, of_pod(usage.namespace, usage.pod, usage.uid), message)

    def _event(self, kind: EventKind, regarding: ObjectIdentity, message: str) -> None:
        self._put(Event(regarding, kind.reason, kind.type, kind.action, message))


def _container(usage: ContainerUsage) -> str:
    return f"container {usage.container}" if usage.container else "its containers"


def _mib(memory: int | None) -> str:
    return "unknown" if memory is None else f"{memory // MIB} MiB"
