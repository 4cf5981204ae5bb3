"""The choice: the node and GPUs that give a pod its slices, by the order of choice and the packing policy."""

from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import NamedTuple

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.account.request import ANY_GPU, Wishes
from gpushare_plugin.model.choice.policies import POLICIES, Policy, Price
from gpushare_plugin.model.partition.search.state import (
    NO_REPLICAS,
    Choice,
    GpuState,
    NodeDefectError,
    NodeState,
    Replicas,
)
from gpushare_plugin.model.slices.layout import Option
from gpushare_plugin.model.slices.slice import Slice

MOST_STEPS = 200
"""Options that are tried for the slices of one pod on one node."""


class Ask(Struct, frozen=True, eq=False):
    """What pods ask of a node: `slices`, the largest first, and by which `policy`, None for the node's own.

    Pods that ask for the same have the same object.
    """

    slices: tuple[Slice, ...]
    wishes: Wishes
    policy: str | None
    default_policy: str
    models: dict[str, bool] = field(default_factory=dict)
    """Whether the wishes accept each model that was looked at: a pod may name many, and nodes have the same few."""

    def choose(self, state: NodeState, owner: str | None = None) -> Choice | None:
        """Return what is best on a node beside pods of `owner`, None where the node has no room for it."""
        try:
            replicas = NO_REPLICAS if owner is None else self._replicas(state, owner)
            key: Hashable = (self, owner) if replicas.node else self
            if key not in state.choices:
                state.choices[key] = self._chosen(state, replicas)
            return state.choices[key]
        except Exception as error:
            raise NodeDefectError(state.number, error) from error  # `blaming` takes too long for this

    def _replicas(self, state: NodeState, owner: str) -> Replicas:
        return state.replicas(owner) if self._policy(state).separates_replicas else NO_REPLICAS

    def _policy(self, state: NodeState) -> Policy:
        return POLICIES[self.policy or state.node.policy or self.default_policy]

    def _chosen(self, state: NodeState, replicas: Replicas) -> Choice | None:
        if state.scarce and any(map(state.overdrawn, self.slices)):
            return None
        numbers = state.numbers if self.wishes == ANY_GPU else self._accepted(state)
        pricing = _Pricing(self._policy(state), replicas)
        if len(self.slices) == 1:
            return _one(state, self.slices[0], pricing, numbers)
        return _several(state, self.slices, pricing, numbers) if _may_fit(state, self.slices, numbers) else None

    def _accepted(self, state: NodeState) -> list[int]:
        """Return the numbers of the GPUs that the wishes accept."""
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
    """What GPUs of a node cost a pod: the policy, and the replicas of its owner there."""

    policy: Policy
    replicas: Replicas

    def of(self, state: NodeState, gpu: GpuState, option: Option) -> Price:
        """Return the price of an option."""
        node_left = state.left - gpu.left + option.left
        left, node = option.left / state.largest, node_left / state.units
        if not self.replicas.node:
            return self.policy.price(left, node)
        return self.policy.price(left, node, self.replicas.gpus.get(gpu.gpu.uuid, 0), self.replicas.node)


class Asks:
    """The asks of a round, one object for equal ones."""

    def __init__(self, default_policy: str) -> None:
        """Know none yet; `default_policy` is for pods and nodes that name none."""
        self._policy = default_policy
        self._known: dict[tuple[tuple[Slice, ...], Wishes, str | None], Ask] = {}

    def of(self, pod: Pod) -> Ask:
        """Return what a pod asks for."""
        return self._ask(pod.slices, pod.request.wishes, pod.request.policy)

    def largest(self, pod: Pod) -> Ask:
        """Return what a pod asks for were its largest slice the only one: a node must have room for that at least."""
        return self._ask(pod.slices[:1], pod.request.wishes, pod.request.policy)

    def _ask(self, slices: tuple[Slice, ...], wishes: Wishes, policy: str | None) -> Ask:
        key = slices, wishes, policy
        if (known := self._known.get(key)) is None:
            known = self._known[key] = Ask(slices, wishes, policy, self._policy)
        return known


def _one(state: NodeState, wanted: Slice, pricing: _Pricing, numbers: Sequence[int]) -> Choice | None:
    best: tuple[int, Price, int, Option] | None = None
    scarce = state.lacks(wanted)
    size = wanted.gib if wanted.kind == "mps" else 1
    for number in numbers:
        each = state.gpus[number]
        # A pinned slice takes none of what is left.
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
    return best and Choice(best[0], best[1][0], ((best[2], best[3]),))


def _may_fit(state: NodeState, slices: Sequence[Slice], numbers: Sequence[int]) -> bool:
    """Return whether each GPU, were the others' slices no matter, had room for its part of the larger slices."""
    for count, wanted in enumerate(slices, start=1):
        there = 0
        for number in numbers:
            each = state.gpus[number]
            if size := each.gpu.room.parts(wanted):
                there += max(0, each.left) // size + len(each.layout.pinned)
        if there < count:
            return False
    return True


def _several(state: NodeState, slices: Sequence[Slice], pricing: _Pricing, numbers: Sequence[int]) -> Choice | None:
    """Return where slices fit together: each at the best place beside those before it, or else at the next best."""
    trial, orders, prices, picks = state.copy(), list[int](), list[float](), list[tuple[int, Option]]()
    for wanted in slices:
        found = _one(trial, wanted, pricing, numbers)
        if found is None:
            return _searched(state, slices, pricing, numbers)
        trial.place(*found.picks[0])
        orders.append(found.order)
        prices.append(found.price)
        picks += found.picks
    return Choice(max(orders), sum(prices) / len(prices), tuple(picks))


def _searched(state: NodeState, slices: Sequence[Slice], pricing: _Pricing, numbers: Sequence[int]) -> Choice | None:
    """Return where slices fit together, going back to the next best place of one where a later one has none."""
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
    return Choice(max(option.order for _, option in picks), sum(price[0] for *_, price in found) / len(found), picks)


def _ranked(
    state: NodeState, wanted: Slice, pricing: _Pricing, numbers: Sequence[int]
) -> list[tuple[int, Option, Price]]:
    """Return every way to give one slice, the best first; of GPUs that are alike, the first only."""
    scarce = state.lacks(wanted)
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
    """The nodes that changed in a round, in order, for searches to catch up with."""

    def __init__(self) -> None:
        """Begin with none."""
        self._numbers: list[int] = []

    def add(self, number: int) -> None:
        """Note that a node changed."""
        self._numbers.append(number)

    def since(self, position: int) -> tuple[set[int], int]:
        """Return the numbers of the nodes that changed since a position, and the position now."""
        return set(islice(self._numbers, position, None)), len(self._numbers)


_Entry = tuple[int, float, int, int]
"""A node in a search: the order and price of what it gives, its number, and its version when that was found."""


class Ranking:
    """The nodes by what they would give for one slice; each is looked at once, and again where it changed."""

    def __init__(self, ask: Ask, states: Sequence[NodeState], changes: Changes) -> None:
        """Look at all nodes."""
        self._ask = ask
        self.states = states
        self.changes = changes
        _, self._position = changes.since(0)
        self._entries = [entry for state in states if (entry := self.entry(state)) is not None]
        heapify(self._entries)

    def entry(self, state: NodeState, owner: str | None = None) -> _Entry | None:
        """Return what a node would give a pod beside those of its owner, None for nothing."""
        choice = self._ask.choose(state, owner)
        return None if choice is None else (choice.order, choice.price, state.number, state.version)

    def heap(self) -> list[_Entry]:
        """Return all nodes that give anything as a heap, with entries of earlier versions among them."""
        changed, self._position = self.changes.since(self._position)
        if changed:
            entries = [entry for entry in self._entries if entry[2] not in changed]
            entries += [entry for number in changed if (entry := self.entry(self.states[number])) is not None]
            heapify(entries)
            self._entries = entries
        return list(self._entries)


class Search:
    """The search of all nodes for pods that are alike, the best first.

    Nodes are ranked by what they would give for the largest slice. Only of the best is found whether it has room for
    all slices, how that comes to be, and how much more it costs because of other pods of the owner.
    """

    def __init__(
        self,
        ask: Ask,
        ranking: Ranking,
        refusal: Callable[[Pod, NodeState], str | None],
        owner: str | None = None,
    ) -> None:
        """Search for `ask`, `ranking` is that of its largest slice; `refusal` says why a pod cannot run on a node.

        `owner` is that of all the pods, None where it makes no difference.
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

    def best(self, pod: Pod, skipped: Container[int]) -> tuple[NodeState, Choice] | None:
        """Return the best node for a pod but those with `skipped` numbers, and what it gives; None where none is."""
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
        """Return what a node gives, and costs, beside other pods of the owner; None where there is no difference."""
        return None if self._owner is None else self._ranking.entry(state, self._owner)

    def _catch_up(self) -> None:
        changed, self._position = self._changes.since(self._position)
        for number in changed - self._refused:
            if (entry := self._ranking.entry(self._states[number])) is not None:
                heappush(self._heap, entry)
