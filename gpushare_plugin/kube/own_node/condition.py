"""The condition `GpuSharingReady` of the own Node: kept up to date, and removed again.

The condition is written in the same way as by the kubelet and the node problem detector: by a strategic merge patch of
the Node's status, which merges conditions by type, and with a heartbeat as a sign of life of the writer.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from gpushare_plugin.base.published import Published
from gpushare_plugin.kube.client import NODES, Client, ClusterError, Object
from gpushare_plugin.kube.names import FIELD_MANAGER, READY_CONDITION

LOOK_EVERY = 1.0
"""Seconds between two looks at the state.

A state is written only after two equal looks, because a restart of the kubelet is not worth a write.
"""

HEARTBEAT = 300.0
"""Seconds until an unchanged state is written again, as with the kubelet's conditions."""

CONSEQUENCE = f"condition {READY_CONDITION} of this Node is not up to date"
"""The consequence of a failure to write, for the log."""

Condition = Mapping[str, str]
"""A condition as in the API, by field name."""


class State(Protocol):
    """The content of a condition."""

    @property
    def status(self) -> str:
        """The status of the condition: True, False or Unknown."""
        ...

    @property
    def reason(self) -> str:
        """The reason for the status, in one word."""
        ...

    @property
    def message(self) -> str:
        """The reason for the status, for people."""
        ...


class ConditionWriter:
    """Keeps the condition of one Node."""

    def __init__(self, client: Client, node_name: str, clock: Callable[[], float] = time.time) -> None:
        """Write to the Node `node_name`; `clock` returns the time of day, in seconds since 1970."""
        self._client = client
        self._path = f"{NODES}/{node_name}"
        self._clock = clock
        self._written: Condition | None = None
        self._uid = ""
        self._beat = 0.0

    async def keep(
        self, nodes: Published[Object | None], state: Callable[[], State], look_every: float = LOOK_EVERY
    ) -> None:
        """Keep the condition of the newest Node in line with `state`; runs until cancelled."""
        backoff = self._client.timing.backoff()
        before = None
        while True:
            found, node = state(), nodes.value
            if found == before and node is not None and self._is_due(node, found):
                try:
                    await self._write(node, found)
                except ClusterError as error:
                    await self._client.wait_out(error, backoff, self._path, CONSEQUENCE)
                else:
                    backoff.reset()
            before = found
            await asyncio.sleep(look_every)

    def _is_due(self, node: Object, state: State) -> bool:
        if self._uid != node["metadata"]["uid"] or self._clock() - self._beat >= HEARTBEAT:
            return True
        return self._written is None or _said(self._written) != (state.status, state.reason, state.message)

    async def _write(self, node: Object, state: State) -> None:
        now, uid = self._clock(), node["metadata"]["uid"]
        there = self._written if self._uid == uid else condition(node)
        same = there is not None and there.get("status") == state.status
        written = {
            "type": READY_CONDITION,
            "status": state.status,
            "reason": state.reason,
            "message": state.message,
            "lastHeartbeatTime": _time(now),
            "lastTransitionTime": (there or {}).get("lastTransitionTime", _time(now)) if same else _time(now),
        }
        await _patch(self._client, node, written)
        self._written, self._uid, self._beat = written, uid, now


def condition(node: Object) -> Condition | None:
    """Return the condition `GpuSharingReady` of a Node, None if the Node has no such condition."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == READY_CONDITION), None)


async def remove_condition(client: Client, node: Object) -> None:
    """Remove the condition `GpuSharingReady` from a Node; raises ClusterError."""
    await _patch(client, node, {"$patch": "delete", "type": READY_CONDITION})


async def _patch(client: Client, node: Object, change: Mapping[str, Any]) -> None:
    # With the UID, a patch never changes a new Node of the same name.
    metadata = node["metadata"]
    body = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [change]}}
    path, query = f"{NODES}/{metadata['name']}/status", {"fieldManager": FIELD_MANAGER}
    await client.request("PATCH", path, query, body, "application/strategic-merge-patch+json")


def _said(there: Condition) -> tuple[str, str, str]:
    return there["status"], there["reason"], there["message"]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
