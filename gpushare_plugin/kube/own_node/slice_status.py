"""The slices in the status of the own Node: written as soon as the kubelet confirms the allocatable slices.

The kubelet writes the same status, but only every ten seconds (`nodeStatusUpdateFrequency`), and kube-scheduler sees
slices only in the status. The written numbers never exceed the slices confirmed by the kubelet, and leave out slices
closed to new pods. If the kubelet writes another number afterwards, this module writes its own number again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.reported import Reported
from gpushare_plugin.kube.client import NODES, Client, ClusterError, Object, decoded
from gpushare_plugin.kube.names import FIELD_MANAGER
from gpushare_plugin.slices.slice import SchedulableSlices, slice_of

_log = structlog.get_logger()

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
"""Seconds until the kubelet is asked again about unconfirmed slices: the first wait and the longest wait."""
BETWEEN_WRITES = 0.2
"""Seconds between two writes, because slices of several sizes come one after another."""

CONSEQUENCE = "kube-scheduler sees changes of slices only when the kubelet writes the status of this Node"
"""The consequence of a failure to write, for the log."""

Healthy = Callable[[], Awaitable[Mapping[str, AbstractSet[str]]]]
"""Returns the IDs of all healthy devices, allocated ones included, by resource; raises GpushareError."""

Status = Mapping[str, Mapping[str, str]]
"""A part of a Node's status: quantities by resource, under `capacity` and `allocatable`."""


class Observer(Protocol):
    """Follows the slices shown by the Node."""

    def shown(self, slices: SchedulableSlices) -> None:
        """Take note that the Node shows no more than `slices`."""
        ...

    def exceeded(self, excess: Mapping[str, int]) -> None:
        """Take note of the number of slices shown in excess by the Node, by resource."""
        ...

    def failed(self) -> None:
        """Take note that the Node cannot be written, or that the kubelet gives no answer about the slices."""
        ...


class SliceStatus:
    """Keeps the slices in the status of one Node."""

    def __init__(self, client: Client, node_name: str, healthy: Healthy, observer: Observer) -> None:
        """Write the slices confirmed by `healthy` to the Node `node_name`, and tell `observer` the shown slices."""
        self._client = client
        self._path = f"{NODES}/{node_name}/status"
        self._healthy = healthy
        self._observer = observer
        self._changes = Reported()
        self._written: tuple[Object, Object] | None = None

    async def keep(self, nodes: Published[Object | None], slices: Published[SchedulableSlices | None]) -> None:
        """Keep the status of the newest Node in line with the newest slices; runs until cancelled.

        With the slices None, or without a Node, nothing is written.
        """
        backoff = self._client.timing.backoff()
        async for _ in changes(nodes, slices):
            pauses = Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE)
            replaced = slices.replaced
            while (node := nodes.value) is not None and (wanted := slices.value) is not None:
                try:
                    is_confirmed = await self._update(self._newest(node), wanted)
                except ClusterError as error:
                    self._observer.failed()
                    await self._client.wait_out(error, backoff, self._path, CONSEQUENCE)
                    continue
                backoff.reset()
                if is_confirmed:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pauses.next()):
                        await replaced.wait()
                replaced = slices.replaced

    def _newest(self, node: Object) -> Object:
        """Return the Node from the answer to the last write, until the watch shows a new version, else `node`."""
        return self._written[1] if self._written is not None and self._written[0] is node else node

    async def _update(self, node: Object, wanted: SchedulableSlices) -> bool:
        """Write the differences; return whether the kubelet confirms all wanted slices. Raises ClusterError."""
        try:
            healthy = await self._healthy()
        except GpushareError as error:
            self._log_unconfirmed(str(error))
            self._observer.failed()
            return False
        self._log_unconfirmed(None)
        counts = {name: len(ids & healthy.get(name, frozenset())) for name, ids in wanted.ids.items()}
        change = difference(node, counts, wanted)
        if change:
            self._observer.exceeded(excess(node, change))
            await self._write(node, change)
        self._observer.shown(wanted)
        if change:
            await asyncio.sleep(BETWEEN_WRITES)
        return all(ids <= healthy.get(name, frozenset()) for name, ids in wanted.ids.items())

    async def _write(self, node: Object, change: Status) -> None:
        # A JSON merge patch, as usual for extended resources; with the UID, it never changes a new Node of this name.
        body = {"metadata": {"uid": node["metadata"]["uid"]}, "status": change}
        query = {"fieldManager": FIELD_MANAGER}
        answer = await self._client.request("PATCH", self._path, query, body, "application/merge-patch+json")
        kind: type[dict[str, Any]] = dict
        self._written = node, decoded(answer, kind, self._path, "PATCH")

    def _log_unconfirmed(self, reason: str | None) -> None:
        if self._changes.is_new("unconfirmed", reason) and reason is not None:
            _log.warning("slices_unconfirmed", reason=reason, consequence=CONSEQUENCE)


def difference(node: Object, counts: Mapping[str, int], wanted: SchedulableSlices) -> Status:
    """Return the changes to the status of a Node that make `counts` slices of each resource allocatable.

    Slices of the wanted kind without a count become 0. The kubelet writes the capacity, including unhealthy slices, so
    the change only raises a capacity below the allocatable number.
    """
    there, capacity = _amounts(node, "allocatable"), _amounts(node, "capacity")
    gone = {name: 0 for name in there if (meant := slice_of(name)) and meant.kind == wanted.kind}
    allocatable = {name: count for name, count in {**gone, **counts}.items() if count != there.get(name, 0)}
    more = {name: count for name, count in allocatable.items() if count > capacity.get(name, 0)}
    found = {"capacity": more, "allocatable": allocatable}
    return {part: {name: str(count) for name, count in each.items()} for part, each in found.items() if each}


def excess(node: Object, change: Status) -> Mapping[str, int]:
    """Return the number of slices that a change removes from a Node, by resource."""
    there = _amounts(node, "allocatable")
    more = {name: there.get(name, 0) - int(count) for name, count in change["allocatable"].items()}
    return {name: count for name, count in more.items() if count > 0}


def _amounts(node: Object, part: str) -> dict[str, int]:
    """Return the whole numbers in a part of a Node's status, without values that are no whole numbers."""
    found: Mapping[str, Any] = (node.get("status") or {}).get(part) or {}
    return {name: int(text) for name, text in found.items() if str(text).isdecimal()}
