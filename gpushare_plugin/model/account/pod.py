"""A pod of the cluster: who it is, where it is, what it asks for and requires, and what annotations say of its GPUs.

The node's daemon and those who read the cluster both ask here what a pod was promised, and what drift is.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from gpushare_plugin.foundation.structs import Struct, kept_while_used
from gpushare_plugin.model.account.request import MOST_SLICES_OF_A_POD, PodRequest, effective
from gpushare_plugin.model.account.scheduling.requirements import NOT_READ, Requirements
from gpushare_plugin.model.slices.slice import Slice


class Share(NamedTuple):
    """Units of one GPU in one resource that a container has; `gpu` is a UUID, or an index in Aliyun's annotations."""

    container: str
    resource: str
    gpu: str
    units: int


Shares = tuple[Share, ...]

OVER = ("Succeeded", "Failed")
"""The phases of pods that kube-scheduler does not count any more."""

UnitsOf = Mapping[str, int]
"""Units of each GPU."""


UNKNOWN = datetime.max.replace(tzinfo=UTC)
"""When a pod was created whose time cannot be read: the pod counts as the youngest."""


Pairs = tuple[tuple[str, str], ...]
"""Keys with their values."""


class Labels(Struct, frozen=True, weakref=True, cache_hash=True):
    """The labels of a pod by which budgets cover it: pods of one controller mostly share the object."""

    pairs: Pairs = ()
    """The labels, sorted."""


shared_labels = kept_while_used(Labels)
"""Return the one object for labels."""

NO_LABELS = Labels()
"""The labels of a pod that has none."""

MOST_LABELS = 64
"""Labels that are kept of a pod."""


class Pod(Struct, frozen=True, gc=False):
    """A pod of the cluster; the pod holds units while it is bound to `node` and has not `ended`.

    Annotations are None where they say nothing that can be read; `occupancy` checks how far they can be believed.
    """

    uid: str
    """Another pod of the same name has another UID."""
    namespace: str
    """The namespace of the pod."""
    name: str
    """The name, unique in the namespace at any time."""
    request: PodRequest
    """The units of extended resources that the pod asks for, and which GPUs the pod accepts."""
    node: str | None = None
    """The node that the pod is bound to, None while the pod waits."""
    owner: str | None = None
    """The UID of the controller of the pod, None for a pod without a controller."""
    priority: int = 0
    """Less important pods can be evicted for the pod."""
    created: datetime = UNKNOWN
    """When the pod was created, an aware time."""
    started: float = math.inf
    """When the pod started, in seconds since 1970; infinite for a pod that has not started: the youngest.

    Read by programs that evict pods, as `labels` are.
    """
    labels: Labels = NO_LABELS
    """The labels that budgets select by."""
    over: bool = False
    """Whether the pod is over by its phase: kube-scheduler counts nothing of the pod any more."""
    ended: bool = False
    """Whether the pod is over, and no container of it runs any more."""
    ending: bool = False
    """Whether the pod is being deleted."""
    nominated: str | None = None
    """The node where other pods are evicted for the pod."""
    gates: tuple[str, ...] = ()
    """Scheduling gates: no scheduler looks at the pod before somebody removes them."""
    allocation: Shares | None = None
    """The units of the pod as the daemon of the node wrote them."""
    promise: Shares | None = None
    """The units of the pod as the scheduler extender promised them for this node."""
    indexes: Shares | None = None
    """The units of the pod by Aliyun's and ACK's annotations, which name GPUs by index."""
    requirements: Requirements = NOT_READ
    """What the pod requires of a node; read by programs that judge nodes."""
    written: Pairs = ()
    """The annotations that the daemon of the node writes, as the API server has them; read by this daemon."""
    container_ids: Pairs = ()
    """The IDs of the containers by name, as the runtime knows them; read by the daemon of the node."""

    @property
    def label(self) -> str:
        """The name of the pod in messages."""
        return f"{self.namespace}/{self.name}"

    @property
    def holds_on(self) -> str | None:
        """The node where the pod has units. A pod that is being deleted still has its units."""
        return self.node if self.request.amounts and not self.ended else None

    @property
    def schedulable(self) -> bool:
        """Whether a scheduler looks for a node for the pod now."""
        return self.node is None and not self.over and not self.gates

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices that the pod asks for, the largest first, and no more than a pod may ask for."""
        return self.request.slices[:MOST_SLICES_OF_A_POD]

    @property
    def asks_for_slices(self) -> bool:
        """Whether the pod asks for slices, or misspells one."""
        return bool(self.request.slices) or self.request.misspelt is not None

    @property
    def waits_for_slices(self) -> bool:
        """Whether the pod has no node, is not going, and asks for slices, or misspells one."""
        return self.node is None and not self.ended and not self.ending and self.asks_for_slices

    @property
    def alike(self) -> Hashable:
        """What is equal for pods that one search for slices can serve."""
        return self.slices, self.request.wishes, self.request.policy, self.requirements


def has_ended(phase: str, runs: Callable[[], bool]) -> bool:
    """Return whether a pod has stopped for good; `runs` says whether a status shows a container that runs.

    A deletion timestamp says nothing of that: containers run on through the grace period, and on a lost node beyond it.
    """
    return phase in OVER and not runs()


def beside(memory: Shares, request: PodRequest, cores: str) -> Shares:
    """Return the compute that goes with memory: equal parts on the GPUs of each container's memory.

    The annotations of Aliyun and ACK name no other GPUs. `cores` is the resource.
    """
    gpus = Counter(share.container for share in memory)
    amounts = request.of_containers.get(cores, {})
    return tuple(
        Share(share.container, cores, share.gpu, units)
        for share in memory
        if (units := amounts.get(share.container, 0) // gpus[share.container])
    )


def promised(pod: Pod, resource: str, kind: str, indexes: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the units of each GPU that each container was promised: by our extender, or else by Aliyun's or ACK's.

    These two name the GPUs of memory by index; `kind` is that of the resource, `indexes` has the name of each GPU by
    its index. What does not agree with the container's own request is left out.
    """
    shares = tuple(share for share in pod.promise or () if share.resource == resource)
    if not shares:
        named = by_index(pod, resource, kind)
        shares = tuple(share._replace(gpu=indexes.get(share.gpu, share.gpu)) for share in named)
    asked = pod.request.of_containers.get(resource, {})
    found = of_containers(shares, resource)
    return {name: units for name, units in found.items() if sum(units.values()) == asked.get(name)}


def by_index(pod: Pod, resource: str, kind: str) -> Shares:
    """Return what Aliyun's or ACK's annotations say of a resource: of memory, and so of the compute beside it."""
    if kind == "cores":
        return beside(pod.indexes or (), pod.request, resource)
    return tuple(share for share in pod.indexes or () if share.resource == resource)


def of_containers(shares: Shares, resource: str) -> dict[str, dict[str, int]]:
    """Return the units of a resource that each container has of each GPU."""
    found: dict[str, dict[str, int]] = {}
    for share in shares:
        if share.resource == resource:
            found.setdefault(share.container, {})[share.gpu] = share.units
    return found


class Comparison(NamedTuple):
    """The units of each GPU in one resource that a pod was promised, and those that it has."""

    pod: Pod
    promised: UnitsOf
    held: UnitsOf


def comparison(pod: Pod, promised: Mapping[str, UnitsOf], held: Mapping[str, UnitsOf]) -> Comparison:
    """Compare what containers of a pod were promised with what they have; those without a promise do not count."""
    has = {container: held[container] for container in promised if container in held}
    return Comparison(pod, _of_pod(pod, promised), _of_pod(pod, has))


class Drift(NamedTuple):
    """By how many units each GPU has more in one resource than was promised there, and the pods that have these."""

    excess: UnitsOf
    pods: tuple[Comparison, ...]


def drift(compared: Iterable[Comparison]) -> Drift:
    """Return the drift of one resource of a node: the units that pods hold of a GPU beyond what was promised there.

    All pods of the node that have not ended and were promised something have to be `compared`, also those that have
    nothing yet. Pods that swapped have not drifted: every GPU has what was promised there.
    """
    compared = list(compared)
    difference: Counter[str] = Counter()
    for each in compared:
        difference.update(each.held)
        difference.subtract(each.promised)
    excess = {gpu: units for gpu, units in difference.items() if units > 0}
    return Drift(
        excess,
        tuple(each for each in compared if any(each.held.get(gpu, 0) > each.promised.get(gpu, 0) for gpu in excess)),
    )


def _of_pod(pod: Pod, of_container: Mapping[str, UnitsOf]) -> UnitsOf:
    """Return the units of each GPU that a pod has in all, where later containers reuse those of init containers."""
    gpus = dict.fromkeys(gpu for units in of_container.values() for gpu in units)
    return {
        gpu: effective((each.kind, of_container.get(each.name, {}).get(gpu, 0)) for each in pod.request.containers)
        for gpu in gpus
    }
