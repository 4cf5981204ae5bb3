"""A pod of the cluster: identity, node, request, needs, and the units of GPUs in the pod's annotations.

The node's daemon and all readers of the cluster share the definitions of promised units and of drift in this module.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from gpushare_plugin.base.structs import Struct, kept_while_used
from gpushare_plugin.ledger.constraints import NOT_READ, Needs
from gpushare_plugin.ledger.request import MOST_SLICES_OF_A_POD, PodRequest, effective
from gpushare_plugin.slices.slice import Slice


class Share(NamedTuple):
    """The units of a GPU in a resource that a container holds or is promised."""

    container: str
    """The name of the container."""
    resource: str
    """The name of the resource."""
    gpu: str
    """The UUID of the GPU; in Aliyun's and ACK's annotations the index."""
    units: int
    """The units."""


Shares = tuple[Share, ...]
"""The units of a pod."""

FINAL_PHASES = ("Succeeded", "Failed")
"""The last phases of pods: kube-scheduler no longer counts the resources of a pod in them."""

UnitsOf = Mapping[str, int]
"""Units by GPU."""


UNKNOWN = datetime.max.replace(tzinfo=UTC)
"""The creation time of a pod with an unreadable time: the pod counts as the youngest."""


Pairs = tuple[tuple[str, str], ...]
"""Keys with their values."""


class ContainerClaim(NamedTuple):
    """A ResourceClaim that a container names."""

    container: str
    """The name of the container."""
    claim: str
    """The name of the ResourceClaim, in the namespace of the pod."""
    request: str
    """The request of the claim; empty for all requests."""


class Labels(Struct, frozen=True, weakref=True, cache_hash=True):
    """The labels of a pod for disruption budgets; pods of a controller mostly share an object."""

    pairs: Pairs = ()
    """The labels, sorted."""


shared_labels = kept_while_used(Labels)
"""Return the shared object for equal labels."""

NO_LABELS = Labels()
"""The labels of a pod without labels."""

MOST_LABELS = 64
"""The most labels kept of a pod."""


class Pod(Struct, frozen=True, gc=False):
    """A pod of the cluster; a pod bound to a `node` and not `ended` holds units.

    `allocation`, `promise` and `indexes` are None without a readable annotation; `occupancy` checks the truth of
    annotations.
    """

    uid: str
    """The UID, different for a later pod with the same name."""
    namespace: str
    """The namespace of the pod."""
    name: str
    """The name, unique in the namespace at any time."""
    request: PodRequest
    """The requested units of extended resources, and the GPUs accepted by the pod."""
    node: str | None = None
    """The name of the pod's node; None for a waiting pod."""
    owner: str | None = None
    """The UID of the pod's controller; None for a pod without a controller."""
    priority: int = 0
    """The priority; pods with a lower priority can be evicted for the pod."""
    created: datetime = UNKNOWN
    """The creation time of the pod, an aware time."""
    started: float = math.inf
    """The start of the pod, in seconds since 1970; infinite for a pod not started, which counts as the youngest.

    Read, like `labels`, by programs that evict pods.
    """
    labels: Labels = NO_LABELS
    """The labels for the selectors of disruption budgets."""
    phase_final: bool = False
    """Whether the phase of the pod is in `FINAL_PHASES`; containers of the pod may still run."""
    ended: bool = False
    """Whether the phase of the pod is final, and no container of the pod runs any more."""
    ending: bool = False
    """Whether the pod is being deleted."""
    nominated: str | None = None
    """The node with pods being evicted for the pod; None without a nomination."""
    gates: tuple[str, ...] = ()
    """The scheduling gates; schedulers pass over a pod with gates."""
    allocation: Shares | None = None
    """The units of the pod, written by the daemon of the node."""
    promise: Shares | None = None
    """The units of the pod, promised by the scheduler extender for the pod's node."""
    indexes: Shares | None = None
    """The units of the pod in Aliyun's and ACK's annotations, with GPUs by index."""
    needs: Needs = NOT_READ
    """What the pod needs of a node; read by programs that judge nodes."""
    written: Pairs = ()
    """The annotations written by the node's daemon, with the API server's values: all for the daemon.

    Programs that show the cluster to people have `gpushare/limits` only, and all other programs none.
    """
    container_ids: Pairs = ()
    """The container runtime's IDs of the containers, by name; read by the node's daemon only."""
    static_uid: str = ""
    """The UID of the static pod that this pod mirrors; empty for other pods, and read by the node's daemon only."""
    claims: tuple[ContainerClaim, ...] = ()
    """The ResourceClaims of the containers; read by the node's daemon only."""

    @property
    def label(self) -> str:
        """The name of the pod in messages."""
        return f"{self.namespace}/{self.name}"

    @property
    def uid_on_node(self) -> str:
        """The UID by which the kubelet runs the pod: in the kubelet's checkpoint, and in the name of its cgroup."""
        return self.static_uid or self.uid

    @property
    def holds_on(self) -> str | None:
        """The node where the pod has units, also during the deletion of the pod; None without units."""
        return self.node if self.request.amounts and not self.ended else None

    @property
    def schedulable(self) -> bool:
        """Whether schedulers look for a node for the pod."""
        return self.node is None and not self.phase_final and not self.gates

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The requested slices, the largest first, at most MOST_SLICES_OF_A_POD."""
        return self.request.slices[:MOST_SLICES_OF_A_POD]

    @property
    def asks_for_slices(self) -> bool:
        """Whether the pod asks for slices, also with a misspelt name."""
        return bool(self.request.slices) or self.request.misspelt is not None

    @property
    def waits_for_slices(self) -> bool:
        """Whether the pod has no node, is not ending, and asks for slices, also with a misspelt name."""
        return self.node is None and not self.ended and not self.ending and self.asks_for_slices

    @property
    def alike(self) -> Hashable:
        """A value equal for pods with the same result in a search for slices."""
        return self.slices, self.request.wishes, self.request.policy, self.needs


def has_ended(phase: str, runs: Callable[[], bool]) -> bool:
    """Return whether a pod has ended for good; `runs` returns whether the pod's status shows a running container.

    A deletion timestamp is no sign of the end: containers still run in the grace period, and on a lost node beyond.
    """
    return phase in FINAL_PHASES and not runs()


def compute_shares(memory: Shares, request: PodRequest, cores: str) -> Shares:
    """Return the compute beside memory: equal parts on the GPUs of each container's memory.

    The annotations of Aliyun and ACK name only the GPUs of memory. `cores` is the resource of compute.
    """
    gpus = Counter(share.container for share in memory)
    amounts = request.of_containers.get(cores, {})
    return tuple(
        Share(share.container, cores, share.gpu, units)
        for share in memory
        if (units := amounts.get(share.container, 0) // gpus[share.container])
    )


def promised(pod: Pod, resource: str, kind: str, indexes: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the units promised to each container, by GPU: by gpushare's extender, or else by Aliyun's or ACK's.

    Aliyun's and ACK's annotations name the GPUs of memory by index. `kind` is the kind of the resource; `indexes` has
    the name of each GPU by its index. A promise different from the container's own request is left out.
    """
    shares = tuple(share for share in pod.promise or () if share.resource == resource)
    if not shares:
        named = by_index(pod, resource, kind)
        shares = tuple(share._replace(gpu=indexes.get(share.gpu, share.gpu)) for share in named)
    asked = pod.request.of_containers.get(resource, {})
    found = of_containers(shares, resource)
    return {name: units for name, units in found.items() if sum(units.values()) == asked.get(name)}


def by_index(pod: Pod, resource: str, kind: str) -> Shares:
    """Return the units of a resource in Aliyun's or ACK's annotations: memory, or the compute beside memory."""
    if kind == "cores":
        return compute_shares(pod.indexes or (), pod.request, resource)
    return tuple(share for share in pod.indexes or () if share.resource == resource)


def of_containers(shares: Shares, resource: str) -> dict[str, dict[str, int]]:
    """Return the units of a resource, by container and GPU."""
    found: dict[str, dict[str, int]] = {}
    for share in shares:
        if share.resource == resource:
            found.setdefault(share.container, {})[share.gpu] = share.units
    return found


class Comparison(NamedTuple):
    """The promised and the held units of a pod in a resource."""

    pod: Pod
    """The pod."""
    promised: UnitsOf
    """The promised units by GPU."""
    held: UnitsOf
    """The held units by GPU."""


def comparison(pod: Pod, promised: Mapping[str, UnitsOf], held: Mapping[str, UnitsOf]) -> Comparison:
    """Return the comparison of promised and held units of a pod, without the containers that have no promise."""
    has = {container: held[container] for container in promised if container in held}
    return Comparison(pod, _of_pod(pod, promised), _of_pod(pod, has))


class Drift(NamedTuple):
    """The units of a resource held beyond the promises on a node."""

    excess: UnitsOf
    """The held units beyond all promises on each GPU, for GPUs with more than 0."""
    pods: tuple[Comparison, ...]
    """The pods with more held than promised units on a GPU of `excess`."""


def drift(compared: Iterable[Comparison]) -> Drift:
    """Return the drift of a resource of a node.

    `compared` needs all pods of the node with a promise that have not ended, also pods without held units. Two pods
    that swapped GPUs have not drifted: every GPU has as many held units as promised.
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
    """Return the total units of a pod by GPU: later containers reuse the units of init containers."""
    gpus = dict.fromkeys(gpu for units in of_container.values() for gpu in units)
    return {
        gpu: effective((each.kind, of_container.get(each.name, {}).get(gpu, 0)) for each in pod.request.containers)
        for gpu in gpus
    }
