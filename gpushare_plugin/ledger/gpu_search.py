"""The search for GPUs on nodes that are alike, for one request: each step decides on all nodes at the same time."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.core.chooser import Request, refuse_several_slices
from gpushare_plugin.core.policies import Numbers, Price, policy_for
from gpushare_plugin.ledger.alike import AlikeNodes, UnitArray
from gpushare_plugin.ledger.apart import chosen_apart
from gpushare_plugin.ledger.ask import Ask
from gpushare_plugin.ledger.divisible import unsplittable, without_memory
from gpushare_plugin.ledger.node import OfferedGpu, OfferedResource
from gpushare_plugin.ledger.occupancy import ONE_GPU_KINDS
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.ledger.request import ANY_GPU
from gpushare_plugin.ledger.verdicts import (
    FITS,
    HIGHEST_SCORE,
    Misfit,
    NodeShortage,
    Verdict,
    misfit_of,
    shortage_in_words,
)

Roomy = NDArray[np.bool_]
"""Whether a GPU has room for the request, by node (row) and GPU (column)."""

Prices = NDArray[np.float64]
"""Prices by node (row), or by node and GPU (column)."""


_NO_MISFIT = -1
"""Stands for the place of a misfit where the pod fits so far."""


class _Candidates(NamedTuple):
    """The GPUs with room for an equal part of the request, for resources whose units come from the same GPUs.

    Nothing is chosen yet: the request gets the cheapest of the GPUs.
    """

    offer: OfferedResource
    """The offer of memory, which decides."""
    resources: Collection[str]
    """The names of the resources."""
    size: int
    """The number of units on each GPU."""
    roomy: Roomy
    """The GPUs with room for `size` units."""


class GpuSearch:
    """The GPUs with room for one request: the verdicts on nodes that are alike, or the place on one node."""

    def __init__(self, nodes: AlikeNodes, ask: Ask, *, close: bool = False) -> None:
        """Search nodes that are alike.

        What the arrays do not have is read of the first node, and holds for all. The caller therefore must pass nodes
        with the same number of pods of the owner, of which all or none have a GPU that the pod names, and with the
        same free units in every resource whose units can come from several GPUs: see `fitting.fits`. With `close`,
        whole GPUs are chosen close to each other, which takes long and changes no verdict.
        """
        self._nodes = nodes
        self._example = nodes.account(nodes.names[0])
        self._request, self._owner, self._rules = ask
        self._policy = policy_for(self._request.policy, self._example.node.policy, self._rules.policy)
        self._costs = self._rules.costs if self._policy.learns else None
        replicas = self._example.replicas(self._owner) if self._policy.separates_replicas else (0, {})
        self._node_replicas, self._replicas = replicas
        self._close = close
        self._misfits: list[Misfit] = []
        self._misfit_of = np.full(len(nodes.names), _NO_MISFIT, dtype=np.int64)
        """The place of the misfit of each node in `_misfits`; _NO_MISFIT for a node that the pod fits so far."""
        self._candidates: list[_Candidates] = []
        self._prices: list[float] = []
        """The prices of the GPUs chosen for resources whose units can come from several GPUs."""
        self._shares: list[Share] = []
        """The units of the containers on these GPUs."""
        self.shortage: NodeShortage | None = None
        """The shortage of the first node, None if the pod fits or something else is the cause."""
        self._run()

    def _run(self) -> None:
        """Look for room in one offered resource after another.

        Different resources have different GPUs, except that cores are part of the GPUs of a memory resource.
        """
        if self._request.problem is not None:
            self._refuse(_incurable(self._request.problem))
            return
        for group in self._groups():
            if isinstance(group, Misfit):
                self._refuse(group)
            elif self._offer(group[0]).kind in ONE_GPU_KINDS:
                self._together(group)
            else:
                self._choose_apart(group[0])
            if self._refused:
                return

    @property
    def _refused(self) -> bool:
        """Whether all nodes are refused."""
        return bool(self._misfits) and bool((self._misfit_of != _NO_MISFIT).all())

    @property
    def misfit(self) -> Misfit | None:
        """The misfit of the first node, None if the pod fits."""
        number = int(self._misfit_of[0])
        return None if number == _NO_MISFIT else self._misfits[number]

    def verdicts(self) -> list[Verdict]:
        """Return the verdict on each node, without numbers of the nodes."""
        misfits, numbers = self._misfits, self._misfit_of.tolist()
        if self._refused:
            return [misfits[number] for number in numbers]
        scores = self._scores().tolist()
        return [
            FITS[score] if number == _NO_MISFIT else misfits[number]
            for number, score in zip(numbers, scores, strict=True)
        ]

    def shares(self) -> list[Share]:
        """Return the units of every container, by GPU and resource, on the one node that the pod fits."""
        found = list(self._shares)
        for candidates in self._candidates:
            price = [np.broadcast_to(each, candidates.roomy.shape) for each in self._ranks_of(candidates)]
            order = np.lexsort((*reversed(price), ~candidates.roomy))[0, : self._request.gpu_count]
            found += self._parts(
                candidates.resources, [candidates.offer.gpus[number].name for number in order.tolist()]
            )
        return found

    def _scores(self) -> NDArray[np.int64]:
        """Return the score of each node, 0 for a pod that needs no GPU; the score of a misfit has no meaning."""
        paid: Prices = np.full(len(self._nodes.names), sum(self._prices), np.float64)
        columns = [column for candidates in self._candidates for column in self._paid(candidates)]
        for column in columns:
            paid += column
        if not (gpus := len(self._prices) + len(columns)):
            return np.zeros(len(self._nodes.names), np.int64)
        # A node without room has an infinite price, and a price above 1 counts as 1.
        return np.asarray(np.rint(HIGHEST_SCORE * (1 - np.minimum(paid / gpus, 1))), np.int64)

    def _paid(self, candidates: _Candidates) -> Iterable[Prices]:
        """Return the prices of the GPUs for each node, the cheapest first; infinite for a node without room."""
        prices = np.where(candidates.roomy, self._prices_of(candidates)[0], np.inf)
        if self._request.gpu_count == 1:
            return (prices.min(axis=1),)
        return np.sort(prices, axis=1).T[: self._request.gpu_count]

    def _prices_of(self, candidates: _Candidates) -> tuple[Prices | float, ...]:
        """Return the price of each GPU, number by number."""
        free, shape = self._nodes.free[candidates.offer.resource], candidates.offer.shape
        node_left = free.sum(axis=1, keepdims=True) - candidates.size * self._request.gpu_count
        replicas = self._replicas_on(candidates.offer)
        return self._price((free - candidates.size) / shape.largest, node_left / shape.units, replicas)

    def _ranks_of(self, candidates: _Candidates) -> tuple[Prices | float, ...]:
        """Return the numbers by which GPUs of one node are taken: by the costs of `packing`, or else the prices."""
        if self._costs is None:
            return self._prices_of(candidates)
        units = np.array([gpu.units for gpu in candidates.offer.gpus], np.int64)
        return (self._costs.of_units(candidates.size, self._nodes.free[candidates.offer.resource], units),)

    def _offer(self, resource: str) -> OfferedResource:
        return self._example.node.offers[resource]

    def _groups(self) -> Iterator[Sequence[str] | Misfit]:
        """Yield the requested and offered resources in groups: the first memory with all cores, every other alone.

        Yields a misfit for a requested resource that the nodes cannot serve.
        """
        memory: list[str] = []
        cores: list[str] = []
        node = self._example.node
        for name in self._request.amounts:
            offer = node.offer(name)
            if offer is None:
                if name in self._rules.ours and node.obscures(name):
                    yield _incurable(f"the record of the node cannot be read: {node.unreadable}")
                elif name in self._rules.ours and node.has_none_of(name):
                    yield _incurable(f"the node does not offer {name}")
            elif offer.kind == "memory":
                memory.append(name)
            elif offer.kind == "cores":
                cores.append(name)
            else:
                yield (name,)
        if cores and (problem := without_memory(self._request, cores[0], memory)):
            yield _incurable(problem)
        if together := (*memory[:1], *cores):
            yield together
        yield from ((name,) for name in memory[1:])

    def _refuse(self, misfit: Misfit, nodes: NDArray[np.bool_] | None = None) -> None:
        """Refuse some or all nodes; a node that is refused already keeps its misfit."""
        left = self._misfit_of == _NO_MISFIT
        self._misfit_of[left if nodes is None else nodes & left] = len(self._misfits)
        self._misfits.append(misfit)

    def _refuse_shortage(self, shortage: NodeShortage, nodes: NDArray[np.bool_] | None = None) -> None:
        """Refuse some or all nodes because of a shortage; the free units in `shortage` are those of the first node."""
        if self.misfit is None and (nodes is None or nodes[0]):
            self.shortage = shortage
        self._refuse(misfit_of(shortage, self._request), nodes)

    def _together(self, group: Sequence[str]) -> None:
        """Look for GPUs with room for all units of all containers, or for equal parts of every container."""
        memory, *cores = [self._offer(name) for name in group]
        shapes = {name: self._offer(name).shape for name in group}
        if self._request.gpu_count > 1 and (problem := unsplittable(self._request, shapes)):
            self._refuse(_incurable(problem))
            return
        eligible: Roomy | None = None
        for offer, after in pairwise((*cores, memory)):
            eligible = _renumbered(self._roomy(offer, eligible), offer, after)
        roomy = self._roomy(memory, eligible)
        size = self._request.amounts[memory.resource] // self._request.gpu_count
        self._candidates.append(_Candidates(memory, group, size, roomy))

    def _roomy(self, offer: OfferedResource, eligible: Roomy | None) -> Roomy:
        """Return which GPUs have room for an equal part of the request; refuse nodes with too few such GPUs."""
        count = self._request.gpu_count
        size = self._request.amounts[offer.resource] // count
        free = self._usable(offer, eligible)
        roomy: Roomy = free >= size
        few: NDArray[np.bool_] = np.asarray(~roomy.any(axis=1) if count == 1 else roomy.sum(axis=1) < count)
        if few.any():
            self._refuse_shortage(NodeShortage(offer, size, count, tuple(free[0].tolist())), few)
        return roomy

    def _usable(self, offer: OfferedResource, eligible: Roomy | None = None) -> UnitArray:
        """Return the free units for the pod: 0 on GPUs that the pod does not accept or that are not `eligible`."""
        free = self._nodes.free[offer.resource]
        for limit in (self._accepted(offer), eligible):
            if limit is not None:
                free = np.where(limit, free, 0)
        return free

    def _accepted(self, offer: OfferedResource) -> Roomy | None:
        """Return which GPUs of an offer the pod accepts, None if the pod accepts all GPUs."""
        wishes = self._request.wishes
        if wishes == ANY_GPU:
            return None

        def accepts(gpu: OfferedGpu) -> bool:
            return wishes.refusal(gpu.name, gpu.product) is None

        # Nodes that are alike have GPUs of the same models, in the same order.
        named = not wishes.named.isdisjoint(self._example.node.gpus)
        offers = self._offers_of_each(offer) if named else (offer,)
        return np.array([[accepts(gpu) for gpu in each.gpus] for each in offers])

    def _replicas_on(self, offer: OfferedResource) -> Prices | int:
        """Return the number of other pods of the same owner on each GPU."""
        if not self._node_replicas:
            return 0
        of_each = [self._nodes.account(name).replicas(self._owner)[1] for name in self._nodes.names]
        there = zip(of_each, self._offers_of_each(offer), strict=True)
        return np.array([[of_gpus.get(gpu.name, 0) for gpu in each.gpus] for of_gpus, each in there], np.float64)

    def _offers_of_each(self, offer: OfferedResource) -> Sequence[OfferedResource]:
        """Return the offers of a resource by all nodes."""
        return [self._nodes.account(name).node.offers[offer.resource] for name in self._nodes.names]

    def _parts(self, resources: Collection[str], gpus: Sequence[str]) -> list[Share]:
        """Return the shares of all containers, with equal parts of a container's units on every GPU of `gpus`."""
        return [
            Share(container.name, resource, gpu, amount // len(gpus))
            for container in self._request.containers
            for resource, amount in container.amounts
            if resource in resources
            for gpu in gpus
        ]

    def _choose_apart(self, resource: str) -> None:
        """Choose GPUs for a resource whose units can come from several GPUs.

        All nodes have the same free units of it, as `__init__` demands: the choice on the first node holds for all.
        """
        offer = self._offer(resource)
        chooser = _SliceChooser(self, offer) if offer.kind == "slices" else offer.chooser(exact=self._close)
        if chooser is None:
            cause = f"{resource} is of kind {offer.kind!r}, which this version does not know: update gpushare"
            self._refuse(_incurable(cause))
            return
        free = dict(zip([gpu.name for gpu in offer.gpus], self._usable(offer)[0].tolist(), strict=True))
        found = chosen_apart(self._request, offer, free, chooser, self._replicas)
        if isinstance(found, NodeShortage):
            self._refuse_shortage(found)
        elif isinstance(found, Misfit):
            self._refuse(found)
        else:
            self._shares += found.shares
            left, node_left = found.free, sum(found.free.values())
            touched = {share.gpu for share in found.shares}
            gpus = [gpu.name for gpu in offer.gpus if gpu.name in touched]
            self._prices += [self.price(offer, gpu, left[gpu], node_left)[0] for gpu in gpus]

    def price(self, offer: OfferedResource, gpu: str, left: int, node_left: int) -> Price:
        """Return the price of a GPU for a choice leaving `left` free units on the GPU and `node_left` on the node."""
        return self._price(left / offer.shape.largest, node_left / offer.shape.units, self._replicas.get(gpu, 0))

    def _price(self, gpu: Numbers, node: Numbers, replicas: Numbers | int) -> tuple[Numbers | float, ...]:
        return self._policy.price(gpu, node, replicas, self._node_replicas)


def _renumbered(roomy: Roomy, offer: OfferedResource, other: OfferedResource) -> Roomy:
    """Return which GPUs of another offer have room, given those of an offer; False for GPUs that the offer lacks."""
    names, wanted = [gpu.name for gpu in offer.gpus], [gpu.name for gpu in other.gpus]
    if names == wanted:
        return roomy
    numbers = {name: number for number, name in enumerate(names)}
    with_none = np.pad(roomy, ((0, 0), (0, 1)))
    return with_none[:, [numbers.get(name, -1) for name in wanted]]


def _incurable(cause: str) -> Misfit:
    """Return the misfit of nodes that evictions do not help."""
    return Misfit(cause, curable=False)


class _SliceChooser:
    """Chooses the GPU for one slice by the policy of pod, node or cluster; a node's daemon takes the fullest GPU."""

    def __init__(self, search: GpuSearch, offer: OfferedResource) -> None:
        self._search = search
        self._offer = offer

    def choose(self, request: Request) -> Mapping[str, int]:
        """Choose the cheapest GPU, or the GPU of a slice already taken."""
        refuse_several_slices(request.resource, request.size)
        if request.taken:
            return request.taken
        prices = [
            (self._search.price(self._offer, name, gpu.free - 1, request.free - 1), number, name)
            for number, (name, gpu) in enumerate(request.gpus.items())
            if gpu.free
        ]
        if not prices:
            raise PlacementError(shortage_in_words(request.resource, 1, 0))
        return {min(prices)[2]: 1}
