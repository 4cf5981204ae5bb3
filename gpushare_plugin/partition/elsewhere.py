"""Existing slices offered by nodes: a pod with an offer needs no new slices, since kube-scheduler soon binds the pod.

The slices are configured, made by people, or offered by another plugin. kube-scheduler's own count says how many
slices are free.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime, timedelta

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.ledger.demand import NOTHING, Demand
from gpushare_plugin.ledger.kube_scheduler import Screening, has_room
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import ANY_GPU
from gpushare_plugin.slices.slice import slice_of


class ExistingOffer(Struct, frozen=True):
    """The offer of a node to a waiting pod: existing slices for the whole request."""

    node: str
    """The name of the node."""
    until: datetime
    """The time by which kube-scheduler has to bind the pod to the node."""


FindOffer = Callable[[Pod], ExistingOffer | None]
"""Returns the offer to a pod, None for no offer; asked once for every pod of a round, in the order of the pods."""

Accepts = Callable[[Pod, str], bool]
"""Returns whether a node has a slice for a pod on a GPU that the pod accepts."""


class Elsewhere:
    """The existing slices offered by nodes, kept up to date while nodes and pods come, change and go."""

    def __init__(self, nodes: Mapping[str, Node], screening: Screening, used: Mapping[str, Demand]) -> None:
        """Begin without offers; `nodes` has all nodes, and `used` the demand of the pods of a node, now and later."""
        self._nodes = nodes
        self._screening = screening
        self._used = used
        self._slices: dict[str, tuple[str, ...]] = {}
        self._free: dict[str, dict[str, None]] = {}  # the names of nodes with free slices, by resource, in order
        self._since: dict[str, datetime] = {}

    def has(self, name: str) -> bool:
        """Return whether a node offers existing slices."""
        return name in self._slices

    def put(self, node: Node) -> None:
        """Take in the present state of a node; slices of the kind that partitioning makes on the node do not count."""
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
        """Count the free slices of a node again, after a change of the demand of its pods."""
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
        """Forget a pod that no longer waits."""
        self._since.pop(uid, None)

    def search(self, accepts: Accepts, now: datetime, patience: float) -> FindOffer:
        """Return the function that finds the offers of one round, at an aware time.

        A pod that is not bound after `patience` seconds with offers gets no more offers: a reason that gpushare does
        not judge keeps the pod away.
        """
        given: dict[str, Demand] = {}  # the demand of the pods with offers of this round, by node
        # Pods that are alike share a queue: a node that cannot take one of the pods takes no further one in this round.
        left: dict[Hashable, deque[str]] = {}

        def takes(name: str, pod: Pod) -> bool:
            used = self._used.get(name, NOTHING)
            if name in given:
                used += given[name]
            has = has_room(pod.needs.demand, self._nodes[name], used)
            return has and (pod.request.wishes == ANY_GPU or accepts(pod, name))

        def find(pod: Pod) -> ExistingOffer | None:
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
            given[node] = given.get(node, NOTHING) + pod.needs.demand
            return ExistingOffer(node, until)

        return find

    def _admitting(self, pod: Pod) -> deque[str]:
        """Return the nodes with free slices for a pod that admit the pod by the rules of kube-scheduler."""
        nodes = self._free.get(pod.slices[0].resource) if pod.slices else None
        if not nodes:
            return deque()
        admitting = self._screening.admitting(pod.needs.constraints)
        return deque(name for name in nodes if name in admitting)
