"""Steers the kubelet's calls to the GPUs that pods were promised; from memory alone."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from gpushare_plugin.foundation.published import Published
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.grant import Recipient
from gpushare_plugin.model.holding import Slot
from gpushare_plugin.model.resource import Resource, UnitsOf
from gpushare_plugin.programs.node.pods.matching import Held, candidates, promises, recipient, served

LONGEST_WAIT = 0.25
"""Seconds that a call of the kubelet waits at most for the watch: no other pod of the node is admitted meanwhile."""

CONFIRMED_WITHIN = 10.0
"""Seconds after which what a container was given counts as given back, unless the kubelet shows it."""


class Watched(Protocol):
    """The pods that are bound to this node, as the API server has them."""

    @property
    def in_order(self) -> Sequence[Pod]:
        """The pods, in the order in which they were bound."""
        ...

    @property
    def live(self) -> bool:
        """Whether changes arrive, as far as is known."""
        ...

    @property
    def changed(self) -> Published[int]:
        """Is replaced whenever a pod comes, goes or changes."""
        ...


class _Given(NamedTuple):
    ids: frozenset[str]
    at: float


class PodSteering:
    """Knows the pods of this node, what they were promised, and who has got something.

    What containers have is what the kubelet showed last, and what it was given since. `given` is replaced with each
    allocation.
    """

    def __init__(
        self, watched: Watched, clock: Callable[[], float] = time.monotonic, longest_wait: float = LONGEST_WAIT
    ) -> None:
        """Steer by the pods of a watch, for which a call waits `longest_wait` seconds at most."""
        self._watched = watched
        self._clock = clock
        self._longest_wait = longest_wait
        self.shown: Held = {}
        """What the kubelet showed last."""
        self._since: dict[Slot, _Given] = {}
        self._last: str | None = None
        self.given = Published(0)

    @property
    def held(self) -> Held:
        """The units that containers have."""
        return {**{slot: given.ids for slot, given in self._since.items()}, **self.shown}

    @property
    def asked_for(self) -> frozenset[str]:
        """The resources of which a container of this node still has to be given something."""
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
        """Take what the kubelet showed when it was asked, a time on our clock.

        Where pods have swapped, what was given to one is shown as another's; then the first has nothing yet.
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
        """Wait, where no pod is known that could ask for so many units and the watch is alive, for it to bring one."""
        try:
            async with asyncio.timeout(self._longest_wait):
                while not self._is_known(resource, size) and self._watched.live:
                    await self._watched.changed.replaced.wait()
        except TimeoutError:
            pass

    def _is_known(self, resource: Resource, size: int) -> bool:
        return bool(candidates(self._watched.in_order, self.held, resource, size, self._last))

    def promises(self, resource: Resource, size: int) -> Sequence[UnitsOf]:
        """Return what was promised to the pods that could ask for so many units, the likeliest first."""
        pods, held = self._watched.in_order, self.held
        return promises(pods, held, resource, candidates(pods, held, resource, size, self._last))

    def recipient(self, resource: Resource, ids: Collection[str]) -> Recipient:
        """Return what is known of the pod that the kubelet gives these units to."""
        return recipient(self._watched.in_order, self.held, resource, ids, self._last)

    def allocated(self, resource: Resource, ids: Collection[str]) -> None:
        """Take note that a container has these units now, until the kubelet shows which one."""
        held = self.held
        asking = candidates(self._watched.in_order, held, resource, len(ids), self._last)
        slot = served(asking, held, resource, ids)
        if slot is not None:
            self._since[slot] = _Given(frozenset(ids), self._clock())
            self._last = slot.uid
        self.given.publish(self.given.value + 1)
