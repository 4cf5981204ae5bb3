"""The policy `packing` in a cluster: what each node would lose by a pod, and what is learned from pods.

The policy itself is in `packing`, the same for a simulation and for a cluster.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.cluster_rows import MIB, ClusterRows, PackedCard
from gpushare_plugin.ledger.constraints import Constraints
from gpushare_plugin.ledger.demand import CPU, MEMORY
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.product_label import PRODUCT, product_value
from gpushare_plugin.ledger.quantity import LARGEST_AMOUNT
from gpushare_plugin.ledger.request import PodRequest, Wishes, essence
from gpushare_plugin.ledger.verdicts import HIGHEST_SCORE
from gpushare_plugin.packing.costs import NO_ROOM
from gpushare_plugin.packing.packed_gpus import PackedGpus
from gpushare_plugin.packing.pod_kind import WHOLE, PodKind, percent_of_units
from gpushare_plugin.packing.policy import FEEDING, Learned, rounded
from gpushare_plugin.packing.rows import Flags, Integers, Numbers
from gpushare_plugin.packing.seen import Lesson

MOST_SEEN = 2**16
"""The number of pods that are remembered as seen: a pod is asked about again and again until it has a node."""

MOST_KINDS = 256
"""The number of different requests whose sizes and models are remembered."""

NO_MODEL = frozenset({""})
"""The models of a pod that accepts none of the cluster's."""

HIGHEST_OF_OTHERS = 5
"""The highest score of nodes that lose more than the best.

The distance from the best is to outweigh kube-scheduler's own scores, which spread pods.
"""

NO_SCORE = -1
"""Stands for the score of a node where the policy has no say."""


class NodeLoss(NamedTuple):
    """What later pods lose if a pod goes to a node."""

    loss: float
    """The loss in GPUs."""
    score: int
    """The score of the node, from 0 to 10."""


class _Sizes(NamedTuple):
    """What a pod takes of the cards of each layout."""

    sizes: Integers
    """The units of a card, by layout and column; LARGEST_AMOUNT for a card that the pod cannot have."""
    percents: Integers
    """The same in percent of the card; NO_ROOM for a card that the pod cannot have."""
    counts: Integers
    """The number of cards, by layout; 0 where the pod has none of the cards."""


class _AskedCards(NamedTuple):
    """What a pod asks of cards."""

    of: tuple[str, str]
    """The resource of the cards, and the kind of the units."""
    size: int
    """The units of each card."""
    number: int
    """The number of cards."""


class PackedCluster:
    """The policy `packing` in a cluster; for one thread only, and never waits."""

    def __init__(self, account: ClusterAccount) -> None:
        """Follow an account."""
        self._account = account
        self.rows = ClusterRows(account)
        """The rows of the nodes."""
        self._policy = self.rows.policy
        self._seen = RecentlyUsed[str, None](MOST_SEEN)
        self._cards = self.rows.cards
        self._kinds: dict[tuple[PodRequest, Constraints], PodKind | None] = {}
        """What `_find_kind` found while the cards were the same."""

    def refresh(self) -> None:
        """Take in all changes of the account; every question does the same, and takes as long as the changes need."""
        self.rows.refresh()

    def see(self, pod: Pod) -> bool:
        """Take note of a pod with GPUs, the first time that somebody asks about it; return whether a lesson is due."""
        if pod.uid in self._seen or (kind := self._kind_seen(pod)) is None:
            return False
        self._seen.put(pod.uid, None)
        return self._policy.note(kind)

    def remember(self, pods: Iterable[Pod]) -> Lesson | None:
        """Take note of pods, the oldest first; return the last lesson that was due."""
        last = None
        for pod in pods:
            if self.see(pod):
                last = self.lesson()
        return last

    def lesson(self) -> Lesson:
        """Begin a lesson: return what was seen until now."""
        return self._policy.lesson()

    def apply(self, found: Learned) -> None:
        """Use what was learned from now on."""
        self._policy.apply(found)
        self._account.use_costs(found.costs)

    def recall(self, lesson: Lesson) -> None:
        """Go on from a lesson of another process."""
        self._policy.recall(lesson)
        self._account.use_costs(self._policy.learned.costs)

    def losses(self, pod: Pod, nodes: Sequence[str]) -> Numbers:
        """Return the loss in GPUs on each node that has room for a pod.

        NaN for a node where the policy has no say: the pod with GPUs or the node names another policy, or the pod gets
        no card of the node, but a MIG instance or slice.
        """
        self.refresh()
        losses = np.full(len(nodes), np.nan)
        rows = self.rows.rows_of(nodes)
        asked = rows >= 0
        if self._account.concerns(pod.request):
            if pod.request.policy not in {None, "packing"}:
                return losses
            if pod.request.policy is None:
                asked[asked] = ~self.rows.other_policy[rows[asked]]
        losses[asked] = self._losses(pod, rows[asked])
        losses[np.isinf(losses)] = np.nan
        return losses

    def _losses(self, pod: Pod, rows: Integers) -> Numbers:
        """Return the loss on each row; NaN where the pod has none of the cards."""
        demand = pod.needs.demand.resources
        cpu, memory = demand.get(CPU, 0), -(-demand.get(MEMORY, 0) // MIB)
        if not self._account.concerns(pod.request):
            return self._policy.losses(PodKind(cpu, memory, 0), rows)[1]
        found = self._sizes(pod.request)
        losses, counts = np.full(len(rows), np.nan), found.counts[self.rows.layout[rows]]
        for count in np.unique(counts[counts > 0]).tolist():
            among = counts == count
            percents = self._percents(found, rows[among])
            losses[among] = self._policy.losses(PodKind(cpu, memory, count), rows[among], percents)[1]
        return losses

    def scores(self, pod: Pod, nodes: Sequence[str], fits: Sequence[bool] = ()) -> list[int]:
        """Return the score of each node, NO_SCORE where the policy has no say, and on nodes without room for the pod.

        `fits` tells which nodes have room; empty if all have.
        """
        losses = self.losses(pod, nodes)
        if fits:
            losses[~np.array(fits)] = np.nan
        return scores(losses)

    def node_losses(self, pod: Pod, nodes: Sequence[str]) -> dict[str, NodeLoss]:
        """Return losses and scores of the nodes that have room for a pod, without nodes where the policy has no say."""
        losses = self.losses(pod, nodes)
        found = zip(nodes, losses.tolist(), scores(losses), (~np.isnan(losses)).tolist(), strict=True)
        return {node: NodeLoss(loss, score) for node, loss, score, known in found if known}

    def best(self, pod: Pod, nodes: Sequence[str]) -> list[str]:
        """Return the nodes that lose least, and the nodes where the policy has no say; all have room for the pod."""
        losses = self.losses(pod, nodes)
        return [node for node, kept in zip(nodes, (best(losses) | np.isnan(losses)).tolist(), strict=True) if kept]

    def gpus(self) -> PackedGpus:
        """Return how much of the GPUs is allocated, and how much of no use."""
        self.refresh()
        rows, smallest = self.rows.rows, self._policy.smallest
        too_small = np.where(rows.free < smallest, rows.free, 0).sum(axis=1) / WHOLE
        free = rows.free_percent / WHOLE
        fed = rows.gpus / FEEDING
        by_cpu = fed * rows.free_cpu / np.maximum(1, rows.cpu)
        by_memory = fed * rows.free_memory / np.maximum(1, rows.memory)
        of_use = np.minimum(free - too_small, np.maximum(0, np.minimum(by_cpu, by_memory)))
        gpus = float(rows.gpus.sum())
        return PackedGpus(gpus, gpus - float(free.sum()), float((free - of_use).sum()), float(too_small.sum()))

    def _percents(self, found: _Sizes, rows: Integers) -> Integers:
        layouts = self.rows.layout[rows]
        # Rounding may leave a piece a little smaller than the last share that fits.
        percents = np.minimum(found.percents[layouts], self.rows.rows.free[rows])
        return np.where(self.rows.free[rows] >= found.sizes[layouts], percents, NO_ROOM)

    def _sizes(self, request: PodRequest) -> _Sizes:
        layouts, columns = self.rows.layouts, self.rows.free.shape[1]
        sizes = np.full((len(layouts), columns), LARGEST_AMOUNT, np.int64)
        percents, counts = np.full_like(sizes, NO_ROOM), np.zeros(len(layouts), np.int64)
        for place, layout in enumerate(layouts):
            chosen = _chosen(request, layout)
            if chosen is None or not 0 < chosen.number <= len(layout):
                continue
            counts[place] = chosen.number
            for column, card in enumerate(layout):
                if (card.resource, card.kind) == chosen.of and 0 < chosen.size <= card.units:
                    sizes[place, column] = chosen.size
                    percents[place, column] = percent_of_units(chosen.size, card.units)
        return _Sizes(sizes, percents, counts)

    def _kind_seen(self, pod: Pod) -> PodKind | None:
        """Return a pod as the policy learns from it, on the commonest card that it fits; None without such a card."""
        self.refresh()
        if self._cards is not self.rows.cards or len(self._kinds) > MOST_KINDS:
            self._cards, self._kinds = self.rows.cards, {}
        key = essence(pod.request), pod.needs.constraints
        if key not in self._kinds:
            self._kinds[key] = self._find_kind(*key)
        return self._kinds[key]

    def _find_kind(self, request: PodRequest, constraints: Constraints) -> PodKind | None:
        for card in sorted(self._cards, key=lambda card: (-self._cards[card], card)):
            if (chosen := _chosen(request, (card,))) is not None and 0 < chosen.size <= card.units:
                percent = percent_of_units(chosen.size, card.units)
                return PodKind(0, 0, chosen.number, percent, self._models(request.wishes, constraints))
        return None

    def _models(self, wishes: Wishes, constraints: Constraints) -> frozenset[str]:
        """Return the models that a pod accepts; empty for all models of the cluster."""
        models = frozenset(filter(None, self.rows.rows.models))
        accepted = frozenset(
            model for model in models if wishes.model_refusal(model) is None and _admit(constraints, model)
        )
        return frozenset() if accepted == models else accepted or NO_MODEL


def _admit(constraints: Constraints, model: str) -> bool:
    """Return whether constraints on the label with the model admit nodes with a model, whole or shared by memory."""
    return constraints.met_by("", {PRODUCT: product_value(model)})


def _chosen(request: PodRequest, layout: Sequence[PackedCard]) -> _AskedCards | None:
    """Return what a pod asks of cards, by the first of its resources with cards; None without such a resource."""
    for resource, amount in request.amounts.items():
        for card in layout:
            if card.resource == resource:
                whole = card.kind == "gpus"
                size, count = (card.units, amount) if whole else (amount // request.gpu_count, request.gpu_count)
                return _AskedCards((resource, card.kind), size, count)
    return None


def scores(losses: Numbers) -> list[int]:
    """Return the scores of nodes from 0 to 10 by their losses: 10 for the best only; NO_SCORE where a loss is NaN."""
    known = ~np.isnan(losses)
    marks = np.where(known, 0, NO_SCORE)
    if known.any():
        more = np.minimum(1, losses[known] - losses[known].min())
        marks[known] = np.floor(HIGHEST_OF_OTHERS * (1 - more))
        marks[best(losses)] = HIGHEST_SCORE
    found: list[int] = marks.tolist()
    return found


def best(losses: Numbers) -> Flags:
    """Return which nodes lose least, as far as losses are told apart."""
    known = ~np.isnan(losses)
    found: Flags = np.zeros(len(losses), np.bool_)
    if known.any():
        found[known] = rounded(losses[known]) == rounded(losses[known]).min()
    return found
