"""A pod as the account knows it: who it is, what it asks for, where it is, and what its annotations say of its GPUs.

The node's daemon and those who read the cluster both ask here what a pod was promised, and what drift is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.request import PodRequest, effective


class Share(NamedTuple):
    """Units of one GPU in one resource that a container has; `gpu` is a UUID, or an index in Aliyun's annotations."""

    container: str
    resource: str
    gpu: str
    units: int


Shares = tuple[Share, ...]

UnitsOf = Mapping[str, int]
"""Units of each GPU."""


class AccountPod(Struct, frozen=True, gc=False):
    """A pod; it holds units while it is bound to `node` and has not `ended`.

    `owner` is the UID of its controller, `priority` decides who can be evicted for it. `ending` is whether it is being
    deleted, `nominated` the node where others are evicted for it. What annotations say, None where
    they say nothing that can be read: `allocation` (the node's daemon), `promise` (the scheduler extender, for this
    node), `indexes` (Aliyun's and ACK's, GPUs by their index). `occupancy` checks how far they can be believed.
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    node: str | None = None
    owner: str | None = None
    priority: int = 0
    ended: bool = False
    ending: bool = False
    nominated: str | None = None
    allocation: Shares | None = None
    promise: Shares | None = None
    indexes: Shares | None = None

    @property
    def holds_on(self) -> str | None:
        """The node where it has units: it is bound and has not ended. A pod that is being deleted still has them."""
        return self.node if self.request.amounts and not self.ended else None

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.namespace}/{self.name}"


def has_ended(phase: str, runs: Callable[[], bool]) -> bool:
    """Return whether a pod has stopped for good; `runs` says whether a status shows a container that runs.

    A deletion timestamp says nothing of that: containers run on through the grace period, and on a lost node beyond it.
    """
    return phase in {"Succeeded", "Failed"} and not runs()


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


def promised(pod: AccountPod, resource: str, kind: str, indexes: Mapping[str, str]) -> dict[str, dict[str, int]]:
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


def by_index(pod: AccountPod, resource: str, kind: str) -> Shares:
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

    pod: AccountPod
    promised: UnitsOf
    held: UnitsOf


def comparison(pod: AccountPod, promised: Mapping[str, UnitsOf], held: Mapping[str, UnitsOf]) -> Comparison:
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


def _of_pod(pod: AccountPod, of_container: Mapping[str, UnitsOf]) -> UnitsOf:
    """Return the units of each GPU that a pod has in all, where later containers reuse those of init containers."""
    gpus = dict.fromkeys(gpu for units in of_container.values() for gpu in units)
    return {
        gpu: effective((each.kind, of_container.get(each.name, {}).get(gpu, 0)) for each in pod.request.containers)
        for gpu in gpus
    }
