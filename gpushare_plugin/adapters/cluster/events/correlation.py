"""Which Events become one, and which are too many; pure.

Facts: the rules and numbers of `EventCorrelator` in client-go (tools/record/events_cache.go), which every component of
Kubernetes has for its own Events.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from gpushare_plugin.adapters.cluster.events.event import Event
from gpushare_plugin.adapters.cluster.identity import ObjectIdentity
from gpushare_plugin.foundation.structs import Struct, field, replace

MOST_KEYS = 4096
"""Objects, and Events, that are remembered; those not seen for longest are forgotten."""
MOST_SIMILAR = 10
"""Messages of one reason about one object within `SIMILAR_WITHIN` from which on they become one Event."""
SIMILAR_WITHIN = 600.0
"""Seconds without such a message after which that counts from the start."""
COMBINED = "(combined from similar events): "
"""What the message of such an Event begins with."""
BURST = 25
"""Events about one object that may come at once."""
REFILL = 300.0
"""Seconds after which one more may come."""

_LONGEST_NAME = 253

Value = TypeVar("Value")


class Series(Struct, frozen=True):
    """An Event as the API server is to have it: how often it happened, and when first and last.

    `name` stays the same while `count` is raised. Times are in seconds since 1970.
    """

    event: Event
    name: str
    first: float
    last: float
    count: int = 1


class _Similar(Struct):
    """The messages of Events that differ in nothing else."""

    last: float
    messages: set[str] = field(default_factory=set)


class _Bucket(Struct):
    """How many Events about an object may still come."""

    tokens: float
    at: float


class _Recent(Generic[Value]):
    """The values of the keys that were used last."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: Hashable, value: Value) -> Value:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > MOST_KEYS:
            self._values.popitem(last=False)
        return value


def unique_name(regarding: str) -> str:
    """Return a new name for an Event about an object of this name."""
    ending = f".{secrets.token_hex(8)}"
    return regarding[: _LONGEST_NAME - len(ending)].rstrip("-.") + ending


class Correlator:
    """Remembers which Events there were."""

    def __init__(self, name: Callable[[str], str] = unique_name) -> None:
        """Begin without any; `name` returns another name for each new one, by that of the object."""
        self._name = name
        self._series = _Recent[Series]()
        self._similar = _Recent[_Similar]()
        self._buckets = _Recent[_Bucket]()

    def observe(self, event: Event, at: float) -> Series | None:
        """Take in an Event that happened at this time; return what to send, None where there were too many.

        Those that are not sent count nevertheless.
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
        """Return what the Event is counted as, and as what it is sent."""
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
        """Return whether one more Event about this object may come, and count it then."""
        bucket = self._buckets.get(regarding) or self._buckets.put(regarding, _Bucket(BURST, at))
        bucket.tokens = min(BURST, bucket.tokens + max(0.0, at - bucket.at) / REFILL)
        bucket.at = max(bucket.at, at)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True
