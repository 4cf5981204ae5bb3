"""A Kubernetes Event about an object, and the backlog of Events that wait to be sent."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.kube.identity import ObjectIdentity

EventType = Literal["Normal", "Warning"]
"""The type of an Event: Normal, or Warning for a problem."""


class Reporter(Struct, frozen=True):
    """The reporter of Events."""

    component: str
    """The name of the program, shown by `kubectl describe` in the column From."""
    host: str
    """The node of the program, empty for an unknown node."""


class Event(Struct, frozen=True):
    """A report about an object."""

    regarding: ObjectIdentity
    """The object."""
    reason: str
    """The reason for the Event, a word in CamelCase."""
    type: EventType
    """The type of the Event."""
    action: str
    """The action of the reporter, a word in CamelCase."""
    message: str
    """A sentence for people."""


def of_node(name: str) -> ObjectIdentity:
    """Return the identity of a Node, with its name as the UID, as in the kubelet's Events.

    `kubectl describe node` finds Events with the name or the real UID as the UID; older versions find only Events with
    the name.
    """
    return ObjectIdentity("", name, uid=name, kind="Node")


def of_pod(namespace: str, name: str, uid: str) -> ObjectIdentity:
    """Return the identity of a pod; `uid` is the UID that the kubelet uses."""
    return ObjectIdentity(namespace, name, uid)


MOST = 1000
"""Largest number of unsent Events, as in client-go; beyond this number, the oldest Events are dropped."""


class Backlog:
    """Keeps Events in their order, each with its time."""

    def __init__(self, clock: Callable[[], float] = time.time, most: int = MOST) -> None:
        """Take the time of day, in seconds since 1970, from `clock`."""
        self._clock = clock
        self._most = most
        self._waiting: deque[tuple[Event, float]] = deque()
        self._filled = asyncio.Event()
        self.dropped = 0
        """The number of dropped Events."""

    def put(self, event: Event) -> None:
        """Add an Event, with the current time as its time."""
        if len(self._waiting) == self._most:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((event, self._clock()))
        self._filled.set()

    async def take(self) -> tuple[Event, float]:
        """Wait for the oldest Event, remove the Event from the backlog, and return it with its time."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft()
