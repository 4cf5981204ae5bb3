"""Sends Events to the API server, in a separate task.

The sender uses Events of core/v1, as the kubelet does: all tools read `count`, `firstTimestamp` and `lastTimestamp`,
and the rules of `correlation` were made for Events of core/v1. Clients of events.k8s.io/v1 see the same objects.
"""

import asyncio
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import structlog

from gpushare_plugin.base.reported import Reported
from gpushare_plugin.base.text import visible
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.events.correlation import Correlator, Series
from gpushare_plugin.kube.events.event import Backlog, Event, Reporter
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.names import FIELD_MANAGER

_log = structlog.get_logger()

NODE_NAMESPACE = "default"
"""The namespace of Events about objects without a namespace (kubernetes: pkg/apis/core/validation/events.go)."""

LONGEST_MESSAGE = 1024
"""Longest message, in characters, as in events.k8s.io/v1."""

ASK_AGAIN = 300.0
"""Seconds until the next attempt if RBAC forbids Events: rights can be granted while this process runs."""

CONSEQUENCE = "Events are kept back, and the oldest are dropped when there are too many"
"""The consequence of a failure to send, for the log."""

_QUERY = {"fieldManager": FIELD_MANAGER}

_TERMINATING = "being terminated"
"""Words of a 403 that is not logged: a namespace in deletion accepts no new objects."""
_OF_ONE_EVENT = frozenset({400, 403, 404, 409, 413, 422})
"""Statuses that concern a single Event or its object; further Events can still be sent."""


class EventSender:
    """Sends the Events of one program."""

    def __init__(self, client: Client, reporter: Reporter, remedy: str, ask_again: float = ASK_AGAIN) -> None:
        """Send as `reporter`; `remedy` is a log text on granting the rights on Events.

        A forbidden Event is sent again after `ask_again` seconds.
        """
        self._client = client
        self._reporter = reporter
        self._remedy = remedy
        self._ask_again = ask_again
        self._correlator = Correlator()
        self._backoff = client.timing.backoff()
        self._changes = Reported()

    async def send(self, backlog: Backlog) -> None:
        """Send all present and future Events of the backlog; runs until cancelled."""
        while True:
            event, at = await backlog.take()
            series = self._correlator.observe(event, at)
            while series is not None and not await self._sent(series):
                pass
            if self._changes.is_new("dropped", backlog.dropped) and backlog.dropped:
                _log.warning("events_dropped", count=backlog.dropped)

    async def _sent(self, series: Series) -> bool:
        """Try to send a series; return whether no further attempt is needed, after a wait if one is needed."""
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
        """Raise the count of an Event; return False if the API server has deleted the Event, usually after an hour."""
        change = {"count": series.count, "lastTimestamp": _time(series.last), "message": _message(series.event)}
        try:
            await self._client.request("PATCH", f"{path}/{series.name}", _QUERY, change, "application/merge-patch+json")
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    async def _given_up(self, error: ClusterError, path: str, event: Event) -> bool:
        """Return True if sending an Event again is pointless; otherwise wait until the next attempt."""
        if error.status in _OF_ONE_EVENT and not error.lacks_right:
            # Not logged: the namespace is gone, or an earlier attempt without an answer has created the Event.
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
