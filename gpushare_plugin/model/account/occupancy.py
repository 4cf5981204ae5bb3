"""What is free on a node: its offers, less what pods hold and what is promised to them; never changed, only replaced.

Whoever wrote an annotation, a pod can only move its own units: each source is believed only as far as it fits the
request. Units of a pod that nothing places may be on any GPU, so they count against every one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.node import Node, Offer, OfferedGpu
from gpushare_plugin.model.account.pod import (
    Drift,
    Pod,
    Share,
    Shares,
    by_index,
    comparison,
    drift,
    of_containers,
    promised,
)
from gpushare_plugin.model.account.request import effective

Source = Literal["allocation", "promise", "indexes", "reservation"]
"""Who says where units are: the node's daemon, the extender, Aliyun's annotations, or a binding that is in progress."""

ONE_GPU_KINDS = frozenset({"memory", "cores"})
"""Kinds of which a pod has all units on the same GPU, or the same number on each of several."""


class Placed(NamedTuple):
    """Units of a pod that are on a GPU."""

    pod: Pod
    """The pod that has the units, or is promised them."""
    gpu: str
    """The GPU, as the offer names it."""
    units: int
    """How many of its units."""
    source: Source
    """Who says so."""


class Unplaced(NamedTuple):
    """Units of a pod that are on a GPU nobody knows: `units` in all, at most `each` of them on one GPU."""

    pod: Pod
    units: int
    each: int


class Reservation(NamedTuple):
    """Units that are promised to a pod until the pod is bound, or the promise is released."""

    pod: Pod
    node: str
    shares: Shares


class GpuAccount(Struct, frozen=True, gc=False):
    """One GPU in one resource: `held` by bound pods, `promised` to pods that are being bound, both in units.

    `unplaced` are units of this resource that may be on this GPU, `over` those that it does not have. A GPU that pods
    hold but that is not offered any more has no units.
    """

    gpu: OfferedGpu
    held: tuple[Placed, ...]
    promised: tuple[Placed, ...]
    unplaced: int
    free: int
    over: int

    @property
    def units(self) -> int:
        """Its units."""
        return self.gpu.units

    @property
    def used(self) -> int:
        """The units that pods have or are promised."""
        return sum(each.units for each in (*self.held, *self.promised))

    @property
    def reason(self) -> str | None:
        """Why none of its units can be allocated, None where they can."""
        return self.gpu.reason

    @property
    def healthy(self) -> bool:
        """Whether its units can be allocated."""
        return self.gpu.reason is None


@dataclass(frozen=True, slots=True)
class ResourceAccount:
    """One resource of a node; `free` are the free units of each GPU of the offer, in its order."""

    offer: Offer
    holdings: tuple[Placed, ...]
    unplaced: tuple[Unplaced, ...]
    free: tuple[int, ...]
    node_free: int
    """Units free on all its GPUs."""

    @property
    def units(self) -> int:
        """Units of all its GPUs."""
        return self.offer.shape.units

    @property
    def largest(self) -> int:
        """Units of the GPU that has most."""
        return self.offer.shape.largest

    @property
    def drift(self) -> Drift:
        """The units that pods have of GPUs beyond what was promised there, as far as the node's daemon says."""
        pods = {each.pod.uid: each.pod for each in self.holdings if each.source != "reservation"}
        pods |= {each.pod.uid: each.pod for each in self.unplaced}
        truth = {each.pod.uid for each in self.holdings if each.source == "allocation"}
        if all(pod.allocation == pod.promise for uid, pod in pods.items() if uid in truth):
            return Drift({}, ())
        name, indexes = self.offer.resource, {str(gpu.index): gpu.name for gpu in self.offer.gpus}
        return drift(
            comparison(pod, promise, of_containers(pod.allocation or (), name) if uid in truth else {})
            for uid, pod in pods.items()
            if (promise := promised(pod, name, self.offer.kind, indexes))
        )

    @property
    def gpus(self) -> tuple[GpuAccount, ...]:
        """Each GPU of the offer, in its order, and then those that are only held."""
        here: dict[str, list[Placed]] = {}
        for each in self.holdings:
            here.setdefault(each.gpu, []).append(each)
        unplaced = sum([each.each for each in self.unplaced])
        found = [
            _gpu_account(gpu, here.get(gpu.name, ()), unplaced, free)
            for gpu, free in zip(self.offer.gpus, self.free, strict=True)
        ]
        for name, holdings in here.items():
            if name not in self.offer.names:
                gone = OfferedGpu(name, -1, 0, reason="not offered any more")
                found.append(_gpu_account(gone, holdings, unplaced, 0))
        return tuple(found)


def _gpu_account(gpu: OfferedGpu, holdings: Iterable[Placed], unplaced: int, free: int) -> GpuAccount:
    held = tuple([each for each in holdings if each.source != "reservation"])
    promised = tuple([each for each in holdings if each.source == "reservation"])
    over = max(0, sum([each.units for each in holdings]) - gpu.units)
    return GpuAccount(gpu, held, promised, unplaced, free, over)


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """One node: what it offers, the pods bound to it, those that are being bound, and what follows for each GPU."""

    node: Node
    pods: tuple[Pod, ...]
    reservations: tuple[Reservation, ...]
    resources: Mapping[str, ResourceAccount]

    @property
    def gpus(self) -> dict[tuple[str, str], GpuAccount]:
        """Each GPU in each resource, by the name of the resource and the GPU's."""
        return {(name, each.gpu.name): each for name, account in self.resources.items() for each in account.gpus}

    def without(self, uids: Collection[str]) -> "NodeAccount":
        """Return the account as it will be when these pods have gone, or are not being bound any more."""
        pods = tuple([pod for pod in self.pods if pod.uid not in uids])
        reservations = tuple([each for each in self.reservations if each.pod.uid not in uids])
        resources = {
            name: _resource_account(
                each.offer,
                [holding for holding in each.holdings if holding.pod.uid not in uids],
                [unplaced for unplaced in each.unplaced if unplaced.pod.uid not in uids],
            )
            for name, each in self.resources.items()
        }
        return NodeAccount(self.node, pods, reservations, resources)

    def promising(self, pod: Pod, shares: Shares) -> "NodeAccount":
        """Return the account as it is with another promise."""
        promise = Reservation(pod, self.node.name, shares)
        return node_account(self.node, self.pods, (*self.reservations, promise))

    def replicas(self, owner: str | None) -> tuple[int, dict[str, int]]:
        """Return how many pods of an owner are here, and how many on each GPU."""
        if owner is None:
            return 0, {}
        pods = {pod.uid for pod in self.pods if pod.owner == owner}
        pods |= {each.pod.uid for each in self.reservations if each.pod.owner == owner}
        there: dict[str, set[str]] = {}
        if pods:
            for account in self.resources.values():
                for each in account.holdings:
                    if each.pod.uid in pods:
                        there.setdefault(each.gpu, set()).add(each.pod.uid)
        return len(pods), {gpu: len(uids) for gpu, uids in there.items()}


class Located(NamedTuple):
    """Where the units of one resource of a pod are."""

    holdings: tuple[Placed, ...]
    unplaced: tuple[Unplaced, ...]


Locate = Callable[[Pod, Offer, Node], Located]
"""Says where a pod on a node has its units of a resource, as `locate` does."""


class Whereabouts:
    """Where pods have their units, found once for each pod until it, or what its node offers, changes."""

    def __init__(self) -> None:
        """Know no pod yet."""
        self._found: dict[str, tuple[Pod, Mapping[str, Offer], dict[str, Located]]] = {}

    def locate(self, pod: Pod, offer: Offer, node: Node) -> Located:
        """Return what `locate` says."""
        known = self._found.get(pod.uid)
        if known is None or known[0] is not pod or known[1] is not node.offers:
            known = self._found[pod.uid] = pod, node.offers, {}
        if (located := known[2].get(offer.resource)) is None:
            located = known[2][offer.resource] = locate(pod, offer, node)
        return located

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._found.pop(uid, None)


def locate(pod: Pod, offer: Offer, node: Node) -> Located:
    """Return where a bound pod has its units of a resource: the first of its annotations that can be believed.

    The node's daemon may say that a pod still holds a GPU that is not offered any more. Where an annotation places
    only a part (pod-resources shows no init containers), the promise that agrees with it places the rest, or else,
    where all units have to be on the same GPUs, the annotation itself.
    """
    offered = offer.names
    told = _believed(pod, offer.resource, pod.allocation, node.gpus)
    amount = pod.request.amounts[offer.resource]
    if told and sum(told.values()) == amount:
        return _located(pod, offer, "allocation", told)
    promised = _believed(pod, offer.resource, pod.promise, offered)
    if told:
        agrees = (
            promised
            and sum(promised.values()) == amount
            and all(units <= promised.get(gpu, 0) for gpu, units in told.items())
        )
        return _located(pod, offer, "allocation", promised if agrees and promised else told)
    if promised:
        return _located(pod, offer, "promise", promised)
    if pod.indexes and (named := _named(by_index(pod, offer.resource, offer.kind), offer)):
        indexed = _believed(pod, offer.resource, named, offered)
        if indexed:
            return _located(pod, offer, "indexes", indexed)
    return Located((), _unplaced(pod, offer, amount))


def node_account(
    node: Node,
    pods: Iterable[Pod],
    reservations: Iterable[Reservation] = (),
    locate: Locate = locate,
) -> NodeAccount:
    """Return the account of a node, given the pods that hold its units, each once, and what is promised to others."""
    pods, reservations = tuple(pods), tuple(reservations)
    accounts = {name: _resource(offer, node, pods, reservations, locate) for name, offer in node.offers.items()}
    for name in dict.fromkeys(_left_over(node, pods)):
        accounts[name] = _resource(Offer(name, "", ()), node, pods, reservations, locate)
    return NodeAccount(node, pods, reservations, accounts)


def _left_over(node: Node, pods: Iterable[Pod]) -> Iterator[str]:
    """Yield the resources that the node offers no more, but that its daemon says pods hold."""
    for pod in pods:
        for share in pod.allocation or ():
            if share.resource not in node.offers and share.resource in pod.request.amounts:
                yield share.resource


def _resource(
    offer: Offer,
    node: Node,
    pods: Iterable[Pod],
    reservations: Iterable[Reservation],
    locate: Locate,
) -> ResourceAccount:
    holdings: list[Placed] = []
    unplaced: list[Unplaced] = []
    for pod in pods:
        if offer.resource in pod.request.amounts:
            located = locate(pod, offer, node)
            holdings += located.holdings
            unplaced += located.unplaced
    for each in reservations:
        by_gpu = _by_gpu(each.pod, offer.resource, each.shares)
        holdings += [Placed(each.pod, gpu, units, "reservation") for gpu, units in by_gpu.items()]
    return _resource_account(offer, holdings, unplaced)


def _resource_account(offer: Offer, holdings: Iterable[Placed], unplaced: Iterable[Unplaced]) -> ResourceAccount:
    """Return the account of a resource, given all units that pods have of it."""
    holdings, unplaced = tuple(holdings), tuple(unplaced)
    used: dict[str, int] = {}
    for _, gpu, units, _ in holdings:
        used[gpu] = used.get(gpu, 0) + units
    anywhere = sum(each.each for each in unplaced)
    free = tuple(
        0 if gpu.reason is not None else max(0, gpu.units - used.get(gpu.name, 0) - anywhere) for gpu in offer.gpus
    )
    return ResourceAccount(offer, holdings, unplaced, free, sum(free))


def _located(pod: Pod, offer: Offer, source: Source, by_gpu: Mapping[str, int]) -> Located:
    """Return the holdings that a source names, and what is left of the request."""
    if not (rest := pod.request.amounts[offer.resource] - sum(by_gpu.values())):
        return Located(tuple([Placed(pod, gpu, units, source) for gpu, units in by_gpu.items()]), ())
    if offer.kind in ONE_GPU_KINDS:
        each, odd = divmod(pod.request.amounts[offer.resource], len(by_gpu))
        if not odd and all(units <= each for units in by_gpu.values()):
            by_gpu, rest = dict.fromkeys(by_gpu, each), 0
    holdings = tuple([Placed(pod, gpu, units, source) for gpu, units in by_gpu.items()])
    return Located(holdings, _unplaced(pod, offer, rest))


def _unplaced(pod: Pod, offer: Offer, units: int) -> tuple[Unplaced, ...]:
    """Return units that nothing places."""
    if not units:
        return ()
    each, odd = divmod(units, pod.request.gpu_count)
    split = offer.kind in ONE_GPU_KINDS and not odd
    return (Unplaced(pod, units, each if split else units),)


def _believed(pod: Pod, resource: str, shares: Shares | None, gpus: Collection[str]) -> dict[str, int] | None:
    """Return the units of each GPU that shares of one resource come to, None where they cannot be true.

    They must be of containers of the pod, of GPUs of the node, and of no more units than each container asked for.
    """
    if not shares:
        return None
    asked, of_container = pod.request.of_containers[resource], dict[str, int]()
    for container, name, gpu, units in shares:
        if name == resource:
            of_container[container] = of_container.get(container, 0) + units
            if gpu not in gpus or units < 1 or of_container[container] > asked.get(container, 0):
                return None
    if not of_container:
        return None
    if len(shares) == 1:
        return {gpu: units}  # as for almost every pod
    by_gpu = _by_gpu(pod, resource, shares)
    return by_gpu if sum(by_gpu.values()) <= pod.request.amounts[resource] else None


def _by_gpu(pod: Pod, resource: str, shares: Shares) -> dict[str, int]:
    """Return the units of each GPU that the pod has in all, where later containers reuse those of init containers."""
    mine = [share for share in shares if share.resource == resource]
    if len(mine) == 1:
        return {mine[0].gpu: mine[0].units}
    by_gpu: dict[str, dict[str, int]] = {}
    for container, _, gpu, units in mine:
        of_container = by_gpu.setdefault(gpu, {})
        of_container[container] = of_container.get(container, 0) + units
    return {
        gpu: effective((each.kind, of_container.get(each.name, 0)) for each in pod.request.containers)
        for gpu, of_container in by_gpu.items()
    }


def _named(shares: Shares, offer: Offer) -> Shares | None:
    """Return shares of GPUs by index as shares of GPUs by name; None where an index does not name exactly one GPU."""
    names: dict[str, list[str]] = {}
    for gpu in offer.gpus:
        names.setdefault(str(gpu.index), []).append(gpu.name)
    found = [(share, names.get(share.gpu, [])) for share in shares]
    if any(len(gpus) != 1 for _, gpus in found):
        return None
    return tuple(Share(share.container, share.resource, gpus[0], share.units) for share, gpus in found)
