"""Sends Events to the API server, in a task of its own.

They are Events of core/v1, as the kubelet's are: all tools read their `count`, `firstTimestamp` and `lastTimestamp`,
and the rules of `correlation` were made for them. Clients of events.k8s.io/v1 see the same objects.
"""

import asyncio
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import structlog

from gpushare_plugin.adapters.cluster.client import Client, ClusterError
from gpushare_plugin.adapters.cluster.events.backlog import Backlog
from gpushare_plugin.adapters.cluster.events.correlation import Correlator, Series
from gpushare_plugin.adapters.cluster.events.event import Event, Reporter
from gpushare_plugin.adapters.cluster.identity import ObjectIdentity
from gpushare_plugin.adapters.cluster.names import FIELD_MANAGER
from gpushare_plugin.foundation.reported import Changes
from gpushare_plugin.foundation.text import visible

_log = structlog.get_logger()

NODE_NAMESPACE = "default"
"""Where Events about objects without a namespace are (kubernetes: pkg/apis/core/validation/events.go)."""

LONGEST_MESSAGE = 1024
"""Characters of a message at most, as events.k8s.io/v1 allows."""

ASK_AGAIN = 300.0
"""Seconds until the next attempt where RBAC forbids Events: rights can be granted while we run."""

CONSEQUENCE = "Events are kept back, and the oldest are dropped when there are too many"

_QUERY = {"fieldManager": FIELD_MANAGER}

_TERMINATING = "being terminated"
"""Words of a 403 that nobody has to see: a namespace that is deleted takes no new object."""
_OF_ONE_EVENT = frozenset({400, 403, 404, 409, 413, 422})
"""Statuses that say something of one Event or its object, while others may be sent."""


class EventSender:
    """Sends the Events of one program."""

    def __init__(self, client: Client, reporter: Reporter, remedy: str, ask_again: float = ASK_AGAIN) -> None:
        """Send as `reporter`; `remedy` says where its rights on Events are granted.

        What is forbidden is tried again after `ask_again` seconds.
        """
        self._client = client
        self._reporter = reporter
        self._remedy = remedy
        self._ask_again = ask_again
        self._correlator = Correlator()
        self._backoff = client.timing.backoff()
        self._changes = Changes()

    async def send(self, backlog: Backlog) -> None:
        """Send what is and comes into the backlog; runs until cancelled."""
        while True:
            event, at = await backlog.take()
            series = self._correlator.observe(event, at)
            while series is not None and not await self._sent(series):
                pass
            if self._changes.is_new("dropped", backlog.dropped) and backlog.dropped:
                _log.warning("events_dropped", count=backlog.dropped)

    async def _sent(self, series: Series) -> bool:
        """Send it once; return whether that is done, after a wait where it may succeed later."""
        path = f"/api/v1/namespaces/{quote(_namespace(series.event.regarding), safe='')}/events"
        try:
            if series.count == 1 or not await self._raised(path, series):
                await self._client.request("POST", path, _QUERY, self._body(series))
        except ClusterError as error:
            return await self._given_up(error, path, series.event)
        self._backoff.reset()
        self._changes.is_new("forbidden", value=False)
        return True

    async def _raised(self, path: str, series: Series) -> bool:
        """Raise the count of an Event; return whether it is still there: the API server deletes them after an hour."""
        change = {"count": series.count, "lastTimestamp": _time(series.last), "message": _message(series.event)}
        try:
            await self._client.request("PATCH", f"{path}/{series.name}", _QUERY, change, "application/merge-patch+json")
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    async def _given_up(self, error: ClusterError, path: str, event: Event) -> bool:
        """Return whether there is no point in sending an Event again; otherwise wait until the next attempt."""
        if error.status in _OF_ONE_EVENT and not error.lacks_right:
            # Its namespace is gone, or an attempt without an answer had made it; else somebody has to see why.
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT} and _TERMINATING not in str(error):
                _log.warning("event_rejected", event_reason=event.reason, reason=str(error))
            return True
        if not error.lacks_right:
            await self._client.wait_out(error, self._backoff, path, CONSEQUENCE)
            return False
        if self._changes.is_new("forbidden", value=True):
            _log.error("events_forbidden", path=path, reason=str(error), consequence=CONSEQUENCE, remedy=self._remedy)
        await asyncio.sleep(self._ask_again)
        return False

    def _body(self, series: Series) -> dict[str, Any]:
        event = series.event
        regarding = {"apiVersion": "v1", "kind": event.regarding.kind, "name": event.regarding.name}
        more = {"namespace": event.regarding.namespace, "uid": event.regarding.uid}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": _namespace(event.regarding)},
            "involvedObject": regarding | {key: value for key, value in more.items() if value},
            "type": event.type,
            "reason": event.reason,
            "action": event.action,
            "message": _message(event),
            "source": {"component": self._reporter.component, "host": self._reporter.host},
            "reportingComponent": self._reporter.component,
            "reportingInstance": self._reporter.host,
            "firstTimestamp": _time(series.first),
            "lastTimestamp": _time(series.last),
            "count": series.count,
        }


def _namespace(regarding: ObjectIdentity) -> str:
    return regarding.namespace or NODE_NAMESPACE


def _message(event: Event) -> str:
    message = visible(event.message)
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
