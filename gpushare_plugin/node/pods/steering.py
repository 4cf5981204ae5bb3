"""Steers the kubelet's calls to the GPUs promised to pods, from memory alone."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from gpushare_plugin.base.published import Published
from gpushare_plugin.core.grant import Recipient
from gpushare_plugin.core.holding import Slot
from gpushare_plugin.core.resource import Resource, UnitsOf
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.node.pods.matching import Held, candidates, promises, recipient, served

LONGEST_WAIT = 0.25
"""The most seconds that a call of the kubelet waits for the watch: the kubelet admits no other pod meanwhile."""

_PARTS = 5
"""The number of parts of the longest wait.

After a pause of this process, for example for lack of processor time, a timeout fires before the process has read the
data that arrived during the pause. The part of the wait after the pause then finds the pod.
"""

CONFIRMED_WITHIN = 10.0
"""Seconds after which allocated units count as given back, unless the kubelet shows the units."""


class Watched(Protocol):
    """The pods bound to this node, by a watch of the API server."""

    @property
    def in_order(self) -> Sequence[Pod]:
        """The pods, in the order of their bindings."""
        ...

    @property
    def live(self) -> bool:
        """Whether changes arrive, as far as known."""
        ...

    @property
    def changed(self) -> Published[int]:
        """A value replaced whenever a pod comes, goes or changes."""
        ...


class _Given(NamedTuple):
    """Units given to a container since the last answer of the kubelet."""

    ids: frozenset[str]
    """The IDs of the units."""
    at: float
    """The time of the allocation, on the clock of the steering."""


class PodSteering:
    """Knows the pods of this node, the promises to pods, and the units of containers.

    Containers have the units shown by the kubelet last, and the units allocated since.
    """

    def __init__(
        self, watched: Watched, clock: Callable[[], float] = time.monotonic, longest_wait: float = LONGEST_WAIT
    ) -> None:
        """Steer by the pods of a watch; a call waits at most `longest_wait` seconds for the watch."""
        self._watched = watched
        self._clock = clock
        self._longest_wait = longest_wait
        self.shown: Held = {}
        """The units of containers in the last answer of the kubelet."""
        self._since: dict[Slot, _Given] = {}
        self._last: str | None = None
        self.given = Published(0)
        """The number of allocations, replaced with every allocation."""

    @property
    def held(self) -> Held:
        """The IDs of the units of containers, by place."""
        return {**{slot: given.ids for slot, given in self._since.items()}, **self.shown}

    @property
    def asked_for(self) -> frozenset[str]:
        """The resources that containers of this node request and have no units of yet."""
        held = self.held
        return frozenset(
            resource
            for pod in self._watched.in_order
            if not (pod.ended or pod.ending)
            for container in pod.request.containers
            for resource, _ in container.amounts
            if Slot(pod.uid, container.name, resource) not in held
        )

    def learn(self, shown: Mapping[Slot, frozenset[str]], asked_at: float) -> None:
        """Take over the units shown by the kubelet; `asked_at` is the time of the question, on our clock.

        After a swap of pods, the kubelet shows units counted for one pod as the units of another pod; the first pod
        then has no units yet.
        """
        self.shown = shown
        confirmed = {
            resource: frozenset[str]().union(*(ids for slot, ids in shown.items() if slot.resource == resource))
            for resource in {slot.resource for slot in self._since}
        }
        self._since = {
            slot: given
            for slot, given in self._since.items()
            if given.at + CONFIRMED_WITHIN > asked_at and not given.ids <= confirmed[slot.resource]
        }

    async def catch_up(self, resource: Resource, size: int) -> None:
        """Wait for the watch to bring a pod that could ask for `size` units.

        Returns at once when such a pod is known or the watch is not alive, and after the longest wait in any case.
        """
        for _ in range(_PARTS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._longest_wait / _PARTS):
                    while not self._is_known(resource, size) and self._watched.live:
                        await self._watched.changed.replaced.wait()
                    return

    def _is_known(self, resource: Resource, size: int) -> bool:
        return bool(candidates(self._watched.in_order, self.held, resource, size, self._last))

    def promises(self, resource: Resource, size: int) -> Sequence[UnitsOf]:
        """Return the promises to the pods that could ask for `size` units, the likeliest first."""
        pods, held = self._watched.in_order, self.held
        return promises(pods, held, resource, candidates(pods, held, resource, size, self._last))

    def recipient(self, resource: Resource, ids: Collection[str]) -> Recipient:
        """Return the known facts about the pod that the kubelet gives these units to."""
        return recipient(self._watched.in_order, self.held, resource, ids, self._last)

    def allocated(self, resource: Resource, ids: Collection[str]) -> None:
        """Count these units as given to the likeliest container, until the kubelet shows the real container."""
        held = self.held
        asking = candidates(self._watched.in_order, held, resource, len(ids), self._last)
        slot = served(asking, held, resource, ids)
        if slot is not None:
            self._since[slot] = _Given(frozenset(ids), self._clock())
            self._last = slot.uid
        self.given.publish(self.given.value + 1)
