"""Combines similar Events into one Event, and drops Events that come too often; pure.

Facts: the rules and numbers of `EventCorrelator` in client-go (tools/record/events_cache.go), used by every component
of Kubernetes for its own Events.
"""

import secrets
from collections.abc import Callable

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.base.structs import Struct, field, replace
from gpushare_plugin.kube.events.event import Event
from gpushare_plugin.kube.identity import ObjectIdentity

MOST_KEYS = 4096
"""Number of remembered Events, of remembered groups of similar Events, and of remembered objects.

Beyond this number, the entries not used for the longest time are forgotten.
"""
MOST_SIMILAR = 10
"""The tenth different message of similar Events, and every further message, become one combined Event."""
SIMILAR_WITHIN = 600.0
"""Seconds without a similar Event after which the count of messages starts again."""
COMBINED = "(combined from similar events): "
"""The beginning of the message of a combined Event."""
BURST = 25
"""Number of Events about one object that may come at once."""
REFILL = 300.0
"""Seconds until one more Event about an object may come."""

_LONGEST_NAME = 253


class Series(Struct, frozen=True):
    """An Event for the API server, with the count and the times of its repetitions."""

    event: Event
    """The Event, with the newest message."""
    name: str
    """The name of the Event object, the same for all counts."""
    first: float
    """The time of the first occurrence, in seconds since 1970."""
    last: float
    """The time of the last occurrence, in seconds since 1970."""
    count: int = 1
    """The number of occurrences."""


class _Similar(Struct):
    """Similar Events, which differ in their messages only."""

    last: float
    """The time of the last Event, in seconds since 1970."""
    messages: set[str] = field(default_factory=set)
    """The different messages."""


class _Bucket(Struct):
    """The number of Events about an object that may still come."""

    tokens: float
    """The number of Events, which may be a fraction."""
    at: float
    """The time at which the number was right, in seconds since 1970."""


def unique_name(regarding: str) -> str:
    """Return a new, unique name for an Event about the object named `regarding`."""
    ending = f".{secrets.token_hex(8)}"
    return regarding[: _LONGEST_NAME - len(ending)].rstrip("-.") + ending


class Correlator:
    """Remembers Events, and decides on sending new Events."""

    def __init__(self, name: Callable[[str], str] = unique_name) -> None:
        """Begin without Events; `name` returns a new name for an Event, from the name of the object."""
        self._name = name
        self._series = RecentlyUsed[Event, Series](MOST_KEYS)
        self._similar = RecentlyUsed[Event, _Similar](MOST_KEYS)
        self._buckets = RecentlyUsed[ObjectIdentity, _Bucket](MOST_KEYS)

    def observe(self, event: Event, at: float) -> Series | None:
        """Take in an Event with its time; return the series to send, or None after too many Events.

        Unsent Events also raise the count of their series.
        """
        key, event = self._combined(event, at)
        before = self._series.get(key)
        if before is None:
            series = Series(event, self._name(event.regarding.name), at, at)
        else:
            series = replace(before, event=event, last=at, count=before.count + 1)
        self._series.put(key, series)
        return series if self._accepted(event.regarding, at) else None

    def _combined(self, event: Event, at: float) -> tuple[Event, Event]:
        """Return the key for counting the Event, and the Event to send, with a combined message if necessary."""
        kind = replace(event, message="")
        similar = self._similar.get(kind)
        if similar is None or at - similar.last > SIMILAR_WITHIN:
            similar = self._similar.put(kind, _Similar(at))
        similar.last = at
        if event.message not in similar.messages and len(similar.messages) == MOST_SIMILAR - 1:
            return kind, replace(event, message=COMBINED + event.message)
        similar.messages.add(event.message)
        return event, event

    def _accepted(self, regarding: ObjectIdentity, at: float) -> bool:
        """Return whether one more Event about an object may come, and count an accepted Event."""
        bucket = self._buckets.get(regarding) or self._buckets.put(regarding, _Bucket(BURST, at))
        bucket.tokens = min(BURST, bucket.tokens + max(0.0, at - bucket.at) / REFILL)
        bucket.at = max(bucket.at, at)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True
