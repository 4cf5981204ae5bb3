"""One round of decisions: which slices are wanted of which GPU, for all pods that wait.

The same input has the same result, and nothing is remembered but what the annotations say.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property

from gpushare_plugin.foundation.structs import Struct, field, replace
from gpushare_plugin.foundation.text import in_words
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.choice.policies import POLICIES
from gpushare_plugin.model.partition.nodes import PartitionNode, left_out
from gpushare_plugin.model.partition.pods import in_order
from gpushare_plugin.model.partition.search.choice import Ask, Asks, Changes, Ranking, Search
from gpushare_plugin.model.partition.search.elsewhere import Offer, Offered
from gpushare_plugin.model.partition.search.refusal import Refusal, Refusals
from gpushare_plugin.model.partition.search.state import Choice, NodeDefectError, NodeState, blaming
from gpushare_plugin.model.partition.taking_back import Broken, Review, Rules, TakenBack, displaced
from gpushare_plugin.model.slices.layout import How
from gpushare_plugin.model.slices.wanted import KeptSlice, Wanted, bounded


class Assigned(Struct, frozen=True):
    """Slices that are kept for a pod on a node; `how` each comes to be, in the order of `kept`.

    `created` is when the pod was. `how` is empty where they were kept before this round.
    """

    uid: str
    pod: str
    created: datetime
    node: str
    kept: tuple[KeptSlice, ...]
    indexes: tuple[int, ...]
    how: tuple[How, ...] = ()


class LeftOut(Struct, frozen=True):
    """A node for which nothing is decided, why, and the defect of gpushare that was met, if that is why."""

    node: str
    reason: str
    error: Exception | None = None


class Decisions(Struct, frozen=True):
    """What one round decided.

    `changes` are the nodes whose annotation is to change. It may be written only where the annotation still is what
    was decided on, so that of two who decide at once one has to decide again. `assigned` and `refused` are by the UIDs
    of the pods that wait, and so are those that are `offered` slices which need not be made. `next_at` is when time
    alone may decide otherwise. `broken` are pods that met a defect, `left_out` nodes for which nothing is decided.
    """

    changes: Mapping[str, Wanted]
    assigned: Mapping[str, Assigned]
    refused: Mapping[str, Refusal]
    taken_back: tuple[TakenBack, ...]
    next_at: datetime | None
    broken: tuple[Broken, ...] = ()
    offered: Mapping[str, Offer] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()


def decide(nodes: Sequence[PartitionNode], pods: Iterable[Pod], now: datetime, rules: Rules) -> Decisions:
    """Decide for pods that wait, at an aware time; nothing is given that pods hold.

    Where one node meets a defect, it is decided again without it: one node must not stop the slices of all others.
    """
    taking_part, waiting, now = list(nodes), in_order(pods), now.replace(microsecond=0)
    rules = replace(rules, offered=_asked_once(rules.offered))
    outside = {number: LeftOut(node.name, node.problem) for number, node in enumerate(nodes) if node.problem}
    while True:
        try:
            found = _Round(taking_part, waiting, now, rules).run()
        except NodeDefectError as defect:
            if defect.number in outside:
                raise
            out = LeftOut(nodes[defect.number].name, f"a defect of gpushare: {in_words(defect.error)}", defect.error)
            outside[defect.number], taking_part[defect.number] = out, left_out(out.node, out.reason)
        else:
            return replace(found, left_out=tuple(outside.values()))


def _asked_once(offered: Offered) -> Offered:
    """Return what says the same of a pod if it is decided again."""
    known: dict[str, Offer | None] = {}

    def remembered(pod: Pod) -> Offer | None:
        if pod.uid not in known:
            known[pod.uid] = offered(pod)
        return known[pod.uid]

    return remembered


class _Round:
    def __init__(self, nodes: Sequence[PartitionNode], waiting: Sequence[Pod], now: datetime, rules: Rules) -> None:
        self._waiting = waiting
        self._by_uid = {pod.uid: pod for pod in waiting}
        self._now = now
        self._rules = rules
        review = Review(nodes, waiting, now, rules)
        self._states = review.states
        self._taken_back = review.taken_back
        self._broken = review.broken
        self._forgets_at = review.forgets_at
        self._contested = [state for state in self._states if state.kept.keys() - state.offered]
        self._changes = Changes()
        self._asks = Asks(rules.policy)
        self._rankings: dict[Ask, Ranking] = {}
        self._searches: dict[Hashable, Search] = {}
        self._assigned = {
            uid: _kept(state, uid, pod)
            for state in self._states
            for uid in state.kept
            if (pod := self._by_uid.get(uid))
        }
        self._failed_on: dict[str, list[NodeState]] = {}
        for state in self._states:
            for uid in state.failed:
                self._failed_on.setdefault(uid, []).append(state)
        self._avoided = {state.number for state in self._states if state.node.name in rules.avoided}
        self._refusals = Refusals(self._states, now, rules)
        self._offered: dict[str, Offer] = {}
        self._not_displacing: set[tuple[Hashable, int, int, int]] = set()

    def run(self) -> Decisions:
        refused: dict[str, Refusal] = {}
        for pod in self._waiting:
            if pod.uid in self._assigned:
                continue
            try:
                refusal = self._serve(pod)
            except NodeDefectError:
                raise
            except Exception as error:  # noqa: BLE001 - one pod must not stop the slices of all others
                self._broken.append(Broken(pod, error))
                continue
            if refusal is not None:
                refused[pod.uid] = refusal
        taken_back = tuple(map(self._swapped, self._taken_back))
        broken = tuple(self._broken)
        return Decisions(self._wanted(), self._assigned, refused, taken_back, self._next(), broken, self._offered)

    def _wanted(self) -> dict[str, Wanted]:
        """Return what is wanted of each node whose annotation is to change."""
        changes: dict[str, Wanted] = {}
        for state in self._states:
            with blaming(state.number):
                if (wanted := state.wanted()) != state.node.wanted:
                    changes[state.node.name] = bounded(wanted)
        return changes

    def _swapped(self, taken: TakenBack) -> TakenBack:
        """Return what was taken back, marked where another pod took it and idle slices are kept instead."""
        assigned = self._assigned.get(taken.uid)
        swapped = taken.taken and assigned is not None and set(assigned.how) == {"idle"}
        return replace(taken, swapped=True) if swapped else taken

    def _serve(self, pod: Pod) -> Refusal | None:
        """Give a pod its slices, unless it need not have any made; return why it gets none."""
        if (offer := self._rules.offered(pod)) is not None:
            self._offered[pod.uid] = offer
            return None
        if (refusal := self._refusals.at_once(pod)) is not None:
            return refusal
        ask = self._asks.of(pod)
        failed = {state.number for state in self._failed_on.get(pod.uid, ())}
        search, later = self._search(pod, ask), failed | self._avoided
        found = search.best(pod, later) or self._displacing(pod, ask, later) or self._again(pod, ask)
        found = found or search.best(pod, failed)
        if found is None:
            return self._refusals.refusal(pod)
        self._give(pod, *found)
        return None

    def _search(self, pod: Pod, ask: Ask) -> Search:
        """Return the search for a pod and those like it."""
        owner = self._separated_owner(pod)
        if (search := self._searches.get((pod.alike, owner))) is None:
            largest = self._asks.largest(pod)
            if (ranking := self._rankings.get(largest)) is None:
                ranking = self._rankings[largest] = Ranking(largest, self._states, self._changes)
            search = Search(ask, ranking, self._refusal, owner)
            self._searches[pod.alike, owner] = search
        return search

    def _separated_owner(self, pod: Pod) -> str | None:
        """Return the owner of a pod where it can make a difference: it has other pods, and a policy separates them."""
        policy = pod.request.policy
        separates = POLICIES[policy].separates_replicas if policy else self._separates
        return pod.owner if separates and pod.owner in self._owners else None

    @cached_property
    def _separates(self) -> bool:
        """Whether the policy of any node, or the default, separates replicas."""
        policies = {state.node.policy or self._rules.policy for state in self._states}
        return any(POLICIES[name].separates_replicas for name in policies)

    @cached_property
    def _owners(self) -> set[str | None]:
        """The owners that have pods on nodes, or for which slices are kept."""
        owners = {owner for state in self._states for owner in state.node.replicas}
        return owners | {pod.owner for state in self._states for pod in state.beside}

    def _refusal(self, pod: Pod, state: NodeState) -> str | None:
        return self._rules.runs_on(pod, state.node.name, state.beside)

    def _give(self, pod: Pod, state: NodeState, choice: Choice) -> None:
        gpus = [state.gpus[number].gpu for number, _ in choice.picks]
        options = [option for _, option in choice.picks]
        kept = tuple(
            KeptSlice(gpu.uuid, option.name, self._now, pod.label) for gpu, option in zip(gpus, options, strict=True)
        )
        state.give(pod, choice.picks, kept)
        self._changes.add(state.number)
        self._owners.add(pod.owner)
        self._assigned[pod.uid] = Assigned(
            pod.uid,
            pod.label,
            pod.created,
            state.node.name,
            kept,
            tuple(gpu.index for gpu in gpus),
            tuple(option.how for option in options),
        )

    def _again(self, pod: Pod, ask: Ask) -> tuple[NodeState, Choice] | None:
        """Return the node where the pod failed longest ago, if it is time to try that again."""
        failed = sorted(self._failed_on.get(pod.uid, ()), key=lambda each: (each.failed[pod.uid].at, each.number))
        for state in failed:
            if self._rules.retry_at(state.failed[pod.uid]) <= self._now:
                choice = ask.choose(state, self._separated_owner(pod))
                if choice is not None and self._refusal(pod, state) is None:
                    return state, choice
        return None

    def _displacing(self, pod: Pod, ask: Ask, failed: set[int]) -> tuple[NodeState, Choice] | None:
        """Take slices that are not offered yet from less important pods, as few as are enough."""
        for state in self._contested:
            # Many pods may ask for the same, and not get it.
            tried = pod.alike, pod.priority, state.number, state.version
            if state.number in failed or tried in self._not_displacing:
                continue
            needed = self._needed(pod, ask, state)
            trial = _without(state, needed)
            choice = ask.choose(trial, self._separated_owner(pod)) if needed else None
            if choice is None:
                self._not_displacing.add(tried)
                continue
            for victim in needed:
                kept = state.kept[victim.uid]
                reason = f"pod {pod.label}, which has a higher priority, needs its room"
                self._taken_back.append(TakenBack.of(victim, state.node, kept, reason))
                state.release(victim.uid)
                del self._assigned[victim.uid]
            return state, choice
        return None

    def _needed(self, pod: Pod, ask: Ask, state: NodeState) -> list[Pod]:
        """Return the less important pods whose slices have to go so that a pod can come; none if that does not help."""

        def helps(trial: NodeState) -> bool:
            return ask.choose(trial) is not None and self._refusal(pod, trial) is None

        victims = displaced(state, pod, self._by_uid)
        if not victims or not helps(_without(state, victims)):
            return []
        trial, needed = state.copy(), list[Pod]()
        for victim in victims:
            trial.release(victim.uid)
            needed.append(victim)
            if helps(trial):
                break
        # What the first ones have may be on another GPU than that which has room now.
        choice = ask.choose(trial)
        gpus = {trial.gpus[number].gpu.uuid for number, _ in choice.picks} if choice is not None else set()
        there = [each for each in needed if any(kept.gpu in gpus for kept in state.kept[each.uid])]
        return there if helps(_without(state, there)) else needed

    def _next(self) -> datetime | None:
        """Return when slices that are kept now would be taken back, or a node be tried again."""
        times = [] if self._forgets_at is None else [self._forgets_at]
        times += [self._rules.gives_up_at(each.kept) for each in self._assigned.values()]
        times += [offer.until for offer in self._offered.values()]
        times += [
            at
            for uid, states in self._failed_on.items()
            if uid in self._by_uid and uid not in self._assigned
            for state in states
            if (at := self._rules.retry_at(state.failed[uid])) > self._now
        ]
        return min(times, default=None)


def _without(state: NodeState, victims: Sequence[Pod]) -> NodeState:
    """Return a node as it is without the slices that are kept for some pods."""
    trial = state.copy()
    for victim in victims:
        trial.release(victim.uid)
    return trial


def _kept(state: NodeState, uid: str, pod: Pod) -> Assigned:
    indexes = {each.gpu.uuid: each.gpu.index for each in state.gpus}
    kept = state.kept[uid]
    return Assigned(uid, pod.label, pod.created, state.node.name, kept, tuple(indexes[each.gpu] for each in kept))
