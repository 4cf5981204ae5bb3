"""The free units of a node: the offers, less the units held by pods or promised to pods.

Accounts are never changed, only replaced. Whoever writes an annotation, the annotation can only move units of its own
pod: a source is believed only if the units fit the request of the pod. Units of a pod on unknown GPUs may be on any
GPU, and count against every GPU.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpushare_plugin.ledger.node import Node, OfferedGpu, OfferedResource
from gpushare_plugin.ledger.pod import (
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
from gpushare_plugin.ledger.request import effective

Source = Literal["allocation", "promise", "indexes", "reservation"]
"""The source for the GPUs of units: the node's daemon, the extender, Aliyun's annotations, or a binding in progress."""

ONE_GPU_KINDS = frozenset({"memory", "cores"})
"""The kinds with all units of a pod on one GPU, or with the same number of units on each of several GPUs."""


class Placed(NamedTuple):
    """Units of a pod on a known GPU."""

    pod: Pod
    """The pod with the units, held or promised."""
    gpu: str
    """The name of the GPU, as in the offer."""
    units: int
    """The number of units on the GPU."""
    source: Source
    """The source for the GPU."""


class Unplaced(NamedTuple):
    """Units of a pod on unknown GPUs."""

    pod: Pod
    """The pod with the units."""
    units: int
    """The number of units on all GPUs."""
    each: int
    """The most units on one GPU."""


class Reservation(NamedTuple):
    """A promise of units to a pod, until the pod is bound or the promise is released."""

    pod: Pod
    """The pod."""
    node: str
    """The name of the node."""
    shares: Shares
    """The promised units of each container, by resource and GPU."""


@dataclass(frozen=True, slots=True)
class ResourceAccount:
    """The account of one resource of a node."""

    offer: OfferedResource
    """The offer of the resource."""
    holdings: tuple[Placed, ...]
    """The held and promised units on known GPUs."""
    unplaced: tuple[Unplaced, ...]
    """The units held on unknown GPUs."""
    free: tuple[int, ...]
    """The number of free units of each GPU, in the order of the offer."""

    @property
    def drift(self) -> Drift:
        """The units held on GPUs, as reported by the node's daemon, beyond the units promised on the same GPUs."""
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
    def by_gpu(self) -> dict[str, list[Placed]]:
        """The held and promised units of each GPU, by name; first the GPUs of the offer, then other held GPUs."""
        found: dict[str, list[Placed]] = {gpu.name: [] for gpu in self.offer.gpus}
        for each in self.holdings:
            found.setdefault(each.gpu, []).append(each)
        return found

    @property
    def gpus(self) -> tuple[OfferedGpu, ...]:
        """The GPUs of the offer, and then the held GPUs that the node no longer offers, without units."""
        gone = [name for name in self.by_gpu if name not in self.offer.names]
        return (*self.offer.gpus, *[OfferedGpu(name, -1, 0, reason="not offered any more") for name in gone])

    @property
    def over(self) -> dict[str, int]:
        """The number of held and promised units of each GPU beyond the units of the GPU, by name."""
        units = {gpu.name: gpu.units for gpu in self.offer.gpus}
        return {
            gpu: max(0, sum([each.units for each in held]) - units.get(gpu, 0)) for gpu, held in self.by_gpu.items()
        }

    @property
    def free_in_sum(self) -> int:
        """The number of units free on the node as kube-scheduler counts: all of usable GPUs, less all that pods hold.

        Negative where pods hold units of GPUs that cannot be used any more.
        """
        held = sum([each.units for each in self.holdings]) + sum([each.units for each in self.unplaced])
        return sum(self.offer.shape.sizes) - held

    @property
    def anywhere(self) -> int:
        """The number of unplaced units that may be on any one GPU."""
        return sum([each.each for each in self.unplaced])


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """The account of one node."""

    node: Node
    """The node with its offers."""
    pods: tuple[Pod, ...]
    """The pods bound to the node."""
    reservations: tuple[Reservation, ...]
    """The promises to pods with a binding in progress."""
    resources: Mapping[str, ResourceAccount]
    """The accounts of the resources, by resource name."""

    def without(self, uids: Collection[str]) -> "NodeAccount":
        """Return the account without the pods `uids`, bound or with a binding in progress."""
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
        """Return the account with an additional promise of `shares` to `pod`."""
        promise = Reservation(pod, self.node.name, shares)
        return node_account(self.node, self.pods, (*self.reservations, promise))

    def replicas(self, owner: str | None) -> tuple[int, dict[str, int]]:
        """Return the number of pods of an owner on the node, and on each GPU."""
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
    """The location of the units of one resource of a pod."""

    holdings: tuple[Placed, ...]
    """The units on known GPUs."""
    unplaced: tuple[Unplaced, ...]
    """The units on unknown GPUs."""


Locate = Callable[[Pod, OfferedResource, Node], Located]
"""Returns the location of the units of an offered resource held by a pod on a node, like `locate`."""


class Whereabouts:
    """The locations of the units of pods, kept until the pod or the offers of the node change."""

    def __init__(self) -> None:
        """Start without pods."""
        self._found: dict[str, tuple[Pod, Mapping[str, OfferedResource], dict[str, Located]]] = {}

    def locate(self, pod: Pod, offer: OfferedResource, node: Node) -> Located:
        """Return the kept result of the function `locate`, or call the function."""
        known = self._found.get(pod.uid)
        if known is None or known[0] is not pod or known[1] is not node.offers:
            known = self._found[pod.uid] = pod, node.offers, {}
        if (located := known[2].get(offer.resource)) is None:
            located = known[2][offer.resource] = locate(pod, offer, node)
        return located

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._found.pop(uid, None)


def locate(pod: Pod, offer: OfferedResource, node: Node) -> Located:
    """Return the location of the units of a resource held by a bound pod: the first believable annotation counts.

    The daemon's annotation may name a held GPU that the node no longer offers. The annotation may also name only a part
    of the units, because pod-resources shows no init containers. If the promise agrees with the annotation, the promise
    then places the rest. Without an agreeing promise, the rest counts on the GPUs of the annotation, if all units of
    the kind have to be on the same GPUs.
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
    """Return the account of a node, given the pods with held units, each pod once, and the promises to further pods."""
    pods, reservations = tuple(pods), tuple(reservations)
    accounts = {name: _resource(offer, node, pods, reservations, locate) for name, offer in node.offers.items()}
    for name in dict.fromkeys(_left_over(node, pods)):
        accounts[name] = _resource(OfferedResource(name, "", ()), node, pods, reservations, locate)
    return NodeAccount(node, pods, reservations, accounts)


def _left_over(node: Node, pods: Iterable[Pod]) -> Iterator[str]:
    """Yield the resources held by pods, as reported by the node's daemon, that the node no longer offers."""
    for pod in pods:
        for share in pod.allocation or ():
            if share.resource not in node.offers and share.resource in pod.request.amounts:
                yield share.resource


def _resource(
    offer: OfferedResource,
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


def _resource_account(
    offer: OfferedResource, holdings: Iterable[Placed], unplaced: Iterable[Unplaced]
) -> ResourceAccount:
    """Return the account of a resource, given all held and promised units of the resource."""
    holdings, unplaced = tuple(holdings), tuple(unplaced)
    used: dict[str, int] = {}
    for _, gpu, units, _ in holdings:
        used[gpu] = used.get(gpu, 0) + units
    anywhere = sum(each.each for each in unplaced)
    free = tuple(
        0 if gpu.reason is not None else max(0, gpu.units - used.get(gpu.name, 0) - anywhere) for gpu in offer.gpus
    )
    return ResourceAccount(offer, holdings, unplaced, free)


def _located(pod: Pod, offer: OfferedResource, source: Source, by_gpu: Mapping[str, int]) -> Located:
    """Return the units on the GPUs named by a source, and the rest of the requested units as unplaced."""
    if not (rest := pod.request.amounts[offer.resource] - sum(by_gpu.values())):
        return Located(tuple([Placed(pod, gpu, units, source) for gpu, units in by_gpu.items()]), ())
    if offer.kind in ONE_GPU_KINDS:
        each, odd = divmod(pod.request.amounts[offer.resource], len(by_gpu))
        if not odd and all(units <= each for units in by_gpu.values()):
            by_gpu, rest = dict.fromkeys(by_gpu, each), 0
    holdings = tuple([Placed(pod, gpu, units, source) for gpu, units in by_gpu.items()])
    return Located(holdings, _unplaced(pod, offer, rest))


def _unplaced(pod: Pod, offer: OfferedResource, units: int) -> tuple[Unplaced, ...]:
    """Return `units` of a pod as unplaced, and an empty tuple for 0 units."""
    if not units:
        return ()
    each, odd = divmod(units, pod.request.gpu_count)
    split = offer.kind in ONE_GPU_KINDS and not odd
    return (Unplaced(pod, units, each if split else units),)


def _believed(pod: Pod, resource: str, shares: Shares | None, gpus: Collection[str]) -> dict[str, int] | None:
    """Return the units of a pod on each GPU by the `shares` of one resource, None without believable shares.

    Believable shares name containers of the pod, GPUs among `gpus`, and no more units than each container requests.
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
        return {gpu: units}  # true for almost every pod
    by_gpu = _by_gpu(pod, resource, shares)
    return by_gpu if sum(by_gpu.values()) <= pod.request.amounts[resource] else None


def _by_gpu(pod: Pod, resource: str, shares: Shares) -> dict[str, int]:
    """Return the total units of a pod on each GPU; later containers reuse the units of init containers."""
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


def _named(shares: Shares, offer: OfferedResource) -> Shares | None:
    """Return shares with GPU indexes as shares with GPU names; None unless each index belongs to exactly one GPU."""
    names: dict[str, list[str]] = {}
    for gpu in offer.gpus:
        names.setdefault(str(gpu.index), []).append(gpu.name)
    found = [(share, names.get(share.gpu, [])) for share in shares]
    if any(len(gpus) != 1 for _, gpus in found):
        return None
    return tuple(Share(share.container, share.resource, gpus[0], share.units) for share, gpus in found)
