"""Slices that nodes offer as they are: for a pod that can have these none is made, kube-scheduler binds it in a moment.

They are configured, or were made by people, or are those of another plugin. Which are free, kube-scheduler's own count
says.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime, timedelta

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.node import Node
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.account.request import ANY_GPU
from gpushare_plugin.model.account.scheduling.demand import NOTHING, Demand
from gpushare_plugin.model.account.scheduling.fits import Screening, has_room
from gpushare_plugin.model.slices.slice import slice_of


class Offer(Struct, frozen=True):
    """A node offers a pod all its slices as they are; it has time `until` then to go there."""

    node: str
    until: datetime


Offered = Callable[[Pod], Offer | None]
"""Says where a pod can have its slices as they are; asked once for each pod of a round, in the order of the pods."""

Accepts = Callable[[Pod, str], bool]
"""Says whether a node has a slice for a pod on one of the GPUs that it names."""


class Elsewhere:
    """The slices that nodes offer as they are, kept as nodes and pods come, change and go."""

    def __init__(self, nodes: Mapping[str, Node], screening: Screening, used: Mapping[str, Demand]) -> None:
        """Know no such node yet; `nodes` are all there are, now and later, and `used` is what the pods of each take."""
        self._nodes = nodes
        self._screening = screening
        self._used = used
        self._slices: dict[str, tuple[str, ...]] = {}
        self._free: dict[str, dict[str, None]] = {}  # nodes by resource, in order
        self._since: dict[str, datetime] = {}

    def has(self, name: str) -> bool:
        """Return whether a node offers slices as they are."""
        return name in self._slices

    def put(self, node: Node) -> None:
        """Take note of a node as it is now; slices of the kind by which it is partitioned are made for pods."""
        self.remove(node.name)
        slices = tuple(
            name
            for name, amount in node.allocatable.items()
            if amount > 0 and (meant := slice_of(name)) is not None and meant.kind != node.partitioning
        )
        if slices:
            self._slices[node.name] = slices
            self.recount(node.name)

    def remove(self, name: str) -> None:
        """Forget a node."""
        for resource in self._slices.pop(name, ()):
            self._set(resource, name, free=False)

    def recount(self, name: str) -> None:
        """Take note that the pods of a node take something else now."""
        used = self._used.get(name, NOTHING).resources
        for resource in self._slices.get(name, ()):
            self._set(resource, name, free=self._nodes[name].allocatable[resource] > used.get(resource, 0))

    def _set(self, resource: str, name: str, *, free: bool) -> None:
        if free:
            self._free.setdefault(resource, {})[name] = None
        elif resource in self._free:
            self._free[resource].pop(name, None)
            if not self._free[resource]:
                del self._free[resource]

    def forget(self, uid: str) -> None:
        """Forget a pod that waits no longer."""
        self._since.pop(uid, None)

    def search(self, accepts: Accepts, now: datetime, patience: float) -> "Offered":
        """Return what finds the offers of one round, at an aware time.

        A pod that has not gone for `patience` seconds where it could is offered nothing more: something that is not
        judged keeps it away.
        """
        taken: dict[str, Demand] = {}
        # For pods that are alike: a node that cannot take one of them takes none in this round.
        left: dict[Hashable, deque[str]] = {}

        def takes(name: str, pod: Pod) -> bool:
            used = self._used.get(name, NOTHING)
            if name in taken:
                used += taken[name]
            has = has_room(pod.requirements.demand, self._nodes[name], used)
            return has and (pod.request.wishes == ANY_GPU or accepts(pod, name))

        def offered(pod: Pod) -> Offer | None:
            if (names := left.get(pod.alike)) is None:
                names = left[pod.alike] = self._admitting(pod)
            while names and not takes(names[0], pod):
                names.popleft()
            if not names:
                self.forget(pod.uid)
                return None
            until = self._since.setdefault(pod.uid, now) + timedelta(seconds=patience)
            if now >= until:
                return None
            node = names[0]
            taken[node] = taken.get(node, NOTHING) + pod.requirements.demand
            return Offer(node, until)

        return offered

    def _admitting(self, pod: Pod) -> deque[str]:
        """Return the nodes with slices for a pod that admit it, as kube-scheduler judges."""
        nodes = self._free.get(pod.slices[0].resource) if pod.slices else None
        if not nodes:
            return deque()
        admitting = self._screening.admitting(pod.requirements.constraints)
        return deque(name for name in nodes if name in admitting)
