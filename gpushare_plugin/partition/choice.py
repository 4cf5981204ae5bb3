"""The choice of a node and GPUs for the slices of a pod, by the order of choice and the policy."""

from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import NamedTuple

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.policies import Policy, Price, policy_for
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import ANY_GPU, Wishes
from gpushare_plugin.partition.state import (
    NO_REPLICAS,
    GpuState,
    NodeChoice,
    NodeDefectError,
    NodeState,
    ReplicaCounts,
)
from gpushare_plugin.slices.room import Option
from gpushare_plugin.slices.slice import Slice

MOST_STEPS = 200
"""The most options tried for the slices of one pod on one node."""


class AskedSlices(Struct, frozen=True, eq=False):
    """The slices that pods ask of a node; pods with equal requests share one object."""

    slices: tuple[Slice, ...]
    """The slices, the largest first."""
    wishes: Wishes
    """The GPUs that the pods accept."""
    policy: str | None
    """The policy named by the pods, None for the policy of the node."""
    default_policy: str
    """The policy for nodes that name no policy."""
    models: dict[str, bool] = field(default_factory=dict)
    """Whether the wishes accept a model, for every model found so far: pods can name many models, nodes share a few."""

    def choose(self, state: NodeState, owner: str | None = None) -> NodeChoice | None:
        """Return the best choice on a node beside pods of `owner`, None if the node has no room.

        Raises NodeDefectError for any defect.
        """
        try:
            replicas = NO_REPLICAS if owner is None else self._replicas(state, owner)
            key: Hashable = (self, owner) if replicas.node else self
            if key not in state.choices:
                state.choices[key] = self._chosen(state, replicas)
            return state.choices[key]
        except Exception as error:
            raise NodeDefectError(state.number, error) from error  # `blaming` takes too long for this

    def _replicas(self, state: NodeState, owner: str) -> ReplicaCounts:
        return state.replicas(owner) if self._policy(state).separates_replicas else NO_REPLICAS

    def _policy(self, state: NodeState) -> Policy:
        return policy_for(self.policy, state.node.policy, self.default_policy)

    def _chosen(self, state: NodeState, replicas: ReplicaCounts) -> NodeChoice | None:
        if state.scarce and any(map(state.overdrawn, self.slices)):
            return None
        numbers = state.numbers if self.wishes == ANY_GPU else self._accepted(state)
        pricing = _Pricing(self._policy(state), replicas)
        if len(self.slices) == 1:
            return _one(state, self.slices[0], pricing, numbers)
        return _several(state, self.slices, pricing, numbers) if _may_fit(state, self.slices, numbers) else None

    def _accepted(self, state: NodeState) -> list[int]:
        """Return the numbers of the GPUs accepted by the wishes."""
        return [
            number
            for number, each in enumerate(state.gpus)
            if self._accepts_model(each.gpu.product) and self.wishes.uuid_refusal(each.gpu.uuid) is None
        ]

    def _accepts_model(self, product: str) -> bool:
        if (accepts := self.models.get(product)) is None:
            accepts = self.models[product] = self.wishes.model_refusal(product) is None
        return accepts


class _Pricing(NamedTuple):
    """The price of GPUs of a node for a pod."""

    policy: Policy
    """The policy of the pod or the node."""
    replicas: ReplicaCounts
    """The pods of the same owner on the node."""

    def of(self, state: NodeState, gpu: GpuState, option: Option) -> Price:
        """Return the price of an option on a GPU of the node."""
        node_left = state.left - gpu.left + option.left
        left, node = option.left / state.largest, node_left / state.parts
        if not self.replicas.node:
            return self.policy.price(left, node)
        return self.policy.price(left, node, self.replicas.gpus.get(gpu.gpu.uuid, 0), self.replicas.node)


class Asks:
    """The asks of a round, with one object for equal asks."""

    def __init__(self, default_policy: str) -> None:
        """Begin without asks; `default_policy` is for pods and nodes that name no policy."""
        self._policy = default_policy
        self._known: dict[tuple[tuple[Slice, ...], Wishes, str | None], AskedSlices] = {}

    def of(self, pod: Pod) -> AskedSlices:
        """Return the ask of a pod."""
        return self._ask(pod.slices, pod.request.wishes, pod.request.policy)

    def largest(self, pod: Pod) -> AskedSlices:
        """Return the ask for the largest slice of a pod alone: a node needs room for at least this slice."""
        return self._ask(pod.slices[:1], pod.request.wishes, pod.request.policy)

    def _ask(self, slices: tuple[Slice, ...], wishes: Wishes, policy: str | None) -> AskedSlices:
        key = slices, wishes, policy
        if (known := self._known.get(key)) is None:
            known = self._known[key] = AskedSlices(slices, wishes, policy, self._policy)
        return known


def _one(state: NodeState, wanted: Slice, pricing: _Pricing, numbers: Sequence[int]) -> NodeChoice | None:
    best: tuple[int, Price, int, Option] | None = None
    scarce = state.no_idle_left(wanted)
    size = wanted.gib if wanted.kind == "mps" else 1
    for number in numbers:
        each = state.gpus[number]
        # Giving a pinned slice takes nothing from the parts left.
        if each.left < size and not each.layout.pinned:
            continue
        for option in each.options(wanted):
            if not (scarce and option.how == "idle"):
                order = option.order
                if best is None or order <= best[0]:
                    found = order, pricing.of(state, each, option), number, option
                    if best is None or found[:3] < best[:3]:
                        best = found
                break
    return best and NodeChoice(best[0], best[1][0], ((best[2], best[3]),))


def _may_fit(state: NodeState, slices: Sequence[Slice], numbers: Sequence[int]) -> bool:
    """Return whether, for every n, the GPUs have room for n slices of the size of the nth largest slice.

    Otherwise the slices cannot fit together.
    """
    for count, wanted in enumerate(slices, start=1):
        there = 0
        for number in numbers:
            each = state.gpus[number]
            if size := each.gpu.room.parts_needed(wanted):
                there += max(0, each.left) // size + len(each.layout.pinned)
        if there < count:
            return False
    return True


def _several(state: NodeState, slices: Sequence[Slice], pricing: _Pricing, numbers: Sequence[int]) -> NodeChoice | None:
    """Return where slices fit together: every slice at the best place beside earlier slices, or else by a search."""
    trial, orders, prices, picks = state.copy(), list[int](), list[float](), list[tuple[int, Option]]()
    for wanted in slices:
        found = _one(trial, wanted, pricing, numbers)
        if found is None:
            return _searched(state, slices, pricing, numbers)
        trial.place(*found.picks[0])
        orders.append(found.order)
        prices.append(found.price)
        picks += found.picks
    return NodeChoice(max(orders), sum(prices) / len(prices), tuple(picks))


def _searched(
    state: NodeState, slices: Sequence[Slice], pricing: _Pricing, numbers: Sequence[int]
) -> NodeChoice | None:
    """Return where slices fit together: if a later slice finds no place, an earlier slice takes the next best place."""
    steps = 0

    def search(there: NodeState, position: int) -> Iterator[tuple[tuple[int, Option, Price], ...]]:
        nonlocal steps
        if position == len(slices):
            yield ()
            return
        for number, option, price in _ranked(there, slices[position], pricing, numbers):
            steps += 1
            if steps > MOST_STEPS:
                return
            after = there.copy()
            after.place(number, option)
            for rest in search(after, position + 1):
                yield ((number, option, price), *rest)

    found = next(search(state, 0), None)
    if found is None:
        return None
    picks = tuple((number, option) for number, option, _ in found)
    return NodeChoice(
        max(option.order for _, option in picks), sum(price[0] for *_, price in found) / len(found), picks
    )


def _ranked(
    state: NodeState, wanted: Slice, pricing: _Pricing, numbers: Sequence[int]
) -> list[tuple[int, Option, Price]]:
    """Return every way to give one slice, the best first; the first of several GPUs that are alike stands for all."""
    scarce = state.no_idle_left(wanted)
    alike: dict[Hashable, int] = {}
    for number in numbers:
        each = state.gpus[number]
        alike.setdefault((each.gpu.room, each.layout, pricing.replicas.gpus.get(each.gpu.uuid, 0)), number)
    found = [
        (number, option, pricing.of(state, state.gpus[number], option))
        for number in alike.values()
        for option in state.gpus[number].options(wanted)
        if not (scarce and option.how == "idle")
    ]
    return sorted(found, key=lambda each: (each[1].order, each[2], each[0]))


class Changes:
    """The changed nodes of a round, in the order of their changes, for searches to catch up with."""

    def __init__(self) -> None:
        """Begin without changes."""
        self._numbers: list[int] = []

    def add(self, number: int) -> None:
        """Note that a node changed."""
        self._numbers.append(number)

    def since(self, position: int) -> tuple[set[int], int]:
        """Return the numbers of the nodes changed since a position, and the present position."""
        return set(islice(self._numbers, position, None)), len(self._numbers)


_Entry = tuple[int, float, int, int]
"""A node in a search: order and price of the choice, number of the node, and version of the node for the choice."""


class Ranking:
    """The nodes ranked by their choices for one slice; a node is looked at once, and again after a change."""

    def __init__(self, ask: AskedSlices, states: Sequence[NodeState], changes: Changes) -> None:
        """Look at all nodes."""
        self._ask = ask
        self.states = states
        self.changes = changes
        _, self._position = changes.since(0)
        self._entries = [entry for state in states if (entry := self.entry(state)) is not None]
        heapify(self._entries)

    def entry(self, state: NodeState, owner: str | None = None) -> _Entry | None:
        """Return the entry of a node beside pods of `owner`, None for a node without a choice."""
        choice = self._ask.choose(state, owner)
        return None if choice is None else (choice.order, choice.price, state.number, state.version)

    def heap(self) -> list[_Entry]:
        """Return a heap of all nodes with a choice, after the changes so far."""
        changed, self._position = self.changes.since(self._position)
        if changed:
            entries = [entry for entry in self._entries if entry[2] not in changed]
            entries += [entry for number in changed if (entry := self.entry(self.states[number])) is not None]
            heapify(entries)
            self._entries = entries
        return list(self._entries)


class SliceSearch:
    """The search of all nodes for pods that are alike, the best node first.

    Nodes are ranked by their choices for the largest slice. For the best node alone, the search finds whether the node
    has room for all slices, how the slices come to be, and how much pods of the same owner add to the price.
    """

    def __init__(
        self,
        ask: AskedSlices,
        ranking: Ranking,
        refusal: Callable[[Pod, NodeState], str | None],
        owner: str | None = None,
    ) -> None:
        """Search for `ask` with the `ranking` of the largest slice; `refusal` returns why a pod cannot run on a node.

        `owner` is the owner of all the pods, None if the owner makes no difference.
        """
        self._owner = owner
        self._ask = ask
        self._ranking = ranking
        self._states = ranking.states
        self._changes = ranking.changes
        self._refusal = refusal
        self._refused: set[int] = set()
        _, self._position = ranking.changes.since(0)
        self._heap = ranking.heap()

    def best(self, pod: Pod, skipped: Container[int]) -> tuple[NodeState, NodeChoice] | None:
        """Return the best node for a pod, not numbered in `skipped`, and the choice there; None if no node has room."""
        self._catch_up()
        aside, found = list[_Entry](), None
        while self._heap and found is None:
            order, price, number, version = self._heap[0]
            state = self._states[number]
            if version != state.version:
                heappop(self._heap)
            elif number in skipped:
                aside.append(heappop(self._heap))
            elif self._refusal(pod, state) is not None:
                self._refused.add(number)
                heappop(self._heap)
            elif (entry := self._beside_replicas(state)) is not None and entry > self._heap[0]:
                heapreplace(self._heap, entry)
            elif (choice := self._ask.choose(state, self._owner)) is None:
                heappop(self._heap)
            elif choice.order > order:
                heapreplace(self._heap, (choice.order, price, number, version))
            else:
                found = state, choice
        for entry in aside:
            heappush(self._heap, entry)
        return found

    def _beside_replicas(self, state: NodeState) -> _Entry | None:
        """Return the entry of a node beside pods of the owner, None if the owner makes no difference."""
        return None if self._owner is None else self._ranking.entry(state, self._owner)

    def _catch_up(self) -> None:
        changed, self._position = self._changes.since(self._position)
        for number in changed - self._refused:
            if (entry := self._ranking.entry(self._states[number])) is not None:
                heappush(self._heap, entry)
