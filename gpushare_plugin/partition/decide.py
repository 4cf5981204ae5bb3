"""One round of decisions: the slices wanted of every GPU, for all waiting pods.

The same input has the same result. A round remembers nothing: all memory is in the annotations of the Nodes.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property

from gpushare_plugin.base.structs import Struct, field, replace
from gpushare_plugin.base.text import in_words
from gpushare_plugin.core.policies import POLICIES
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.partition.choice import AskedSlices, Asks, Changes, Ranking, SliceSearch
from gpushare_plugin.partition.elsewhere import ExistingOffer, FindOffer
from gpushare_plugin.partition.nodes import PartitionNode, left_out
from gpushare_plugin.partition.pods import in_order
from gpushare_plugin.partition.refusal import NoSlice, Refusals
from gpushare_plugin.partition.state import NodeChoice, NodeDefectError, NodeState, blaming
from gpushare_plugin.partition.taking_back import Broken, Review, RoundRules, TakenBack, displaced
from gpushare_plugin.slices.room import How
from gpushare_plugin.slices.wanted import KeptSlice, Wanted, bounded


class Assigned(Struct, frozen=True):
    """The slices kept for one pod on one node."""

    uid: str
    """The UID of the pod."""
    pod: str
    """The pod, as `namespace/name`."""
    created: datetime
    """The time at which the pod was created."""
    node: str
    """The name of the node."""
    kept: tuple[KeptSlice, ...]
    """The kept slices."""
    indexes: tuple[int, ...]
    """The indexes of the GPUs of the slices, in the order of `kept`."""
    how: tuple[How, ...] = ()
    """The origins of the slices, in the order of `kept`; empty for slices kept since an earlier round."""


class LeftOut(Struct, frozen=True):
    """A node without decisions."""

    node: str
    """The name of the node."""
    reason: str
    """Why the round decides nothing for the node."""
    error: Exception | None = None
    """The defect of gpushare behind the reason, None if the reason is no defect."""


class Decisions(Struct, frozen=True):
    """The decisions of one round."""

    changes: Mapping[str, Wanted]
    """The slices wanted from now on, by the name of the node, for annotations that have to change.

    A writer replaces only the annotation that the round has read: if two partitioners decide at once, one partitioner
    has to decide again.
    """
    assigned: Mapping[str, Assigned]
    """The slices kept for waiting pods, by the UID of the pod."""
    refused: Mapping[str, NoSlice]
    """The refusals of waiting pods, by the UID of the pod."""
    taken_back: tuple[TakenBack, ...]
    """The slices no longer kept for waiting pods."""
    next_at: datetime | None
    """The time from which decisions can differ although nothing else has changed; None for never."""
    broken: tuple[Broken, ...] = ()
    """The pods with a defect in their decision."""
    elsewhere: Mapping[str, ExistingOffer] = field(default_factory=dict)
    """The offers of existing slices to waiting pods, by the UID of the pod: no slices are made for the pod."""
    left_out: tuple[LeftOut, ...] = ()
    """The nodes without decisions."""


def decide(nodes: Sequence[PartitionNode], pods: Iterable[Pod], now: datetime, rules: RoundRules) -> Decisions:
    """Decide for waiting pods, at an aware time; slices held by pods are never given to another pod.

    After a defect in one node, the round begins again without the node: one node must not stop the slices of all nodes.
    Raises NodeDefectError after a defect in a node that is left out already.
    """
    taking_part, waiting, now = list(nodes), in_order(pods), now.replace(microsecond=0)
    rules = replace(rules, existing_offer=_asked_once(rules.existing_offer))
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


def _asked_once(find: FindOffer) -> FindOffer:
    """Return `find` with a memory: when a round begins again, a pod gets the same answer."""
    known: dict[str, ExistingOffer | None] = {}

    def remembered(pod: Pod) -> ExistingOffer | None:
        if pod.uid not in known:
            known[pod.uid] = find(pod)
        return known[pod.uid]

    return remembered


class _Round:
    def __init__(
        self, nodes: Sequence[PartitionNode], waiting: Sequence[Pod], now: datetime, rules: RoundRules
    ) -> None:
        self._waiting = waiting
        self._by_uid = {pod.uid: pod for pod in waiting}
        self._now = now
        self._rules = rules
        review = Review(nodes, waiting, now, rules)
        self._states = review.states
        self._taken_back = review.taken_back
        self._broken = review.broken
        self._forgets_at = review.forgets_at
        self._contested = [state for state in self._states if state.kept.keys() - state.offered_to]
        self._changes = Changes()
        self._asks = Asks(rules.policy)
        self._rankings: dict[AskedSlices, Ranking] = {}
        self._searches: dict[Hashable, SliceSearch] = {}
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
        self._elsewhere: dict[str, ExistingOffer] = {}
        self._not_displacing: set[tuple[Hashable, int, int, int]] = set()

    def run(self) -> Decisions:
        refused: dict[str, NoSlice] = {}
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
        return Decisions(self._wanted(), self._assigned, refused, taken_back, self._next(), broken, self._elsewhere)

    def _wanted(self) -> dict[str, Wanted]:
        """Return the wanted slices of every node with an annotation that has to change, by the name of the node."""
        changes: dict[str, Wanted] = {}
        for state in self._states:
            with blaming(state.number):
                if (wanted := state.wanted()) != state.node.wanted:
                    changes[state.node.name] = bounded(wanted)
        return changes

    def _swapped(self, taken: TakenBack) -> TakenBack:
        """Return slices taken back, marked as swapped if another pod has them and the pod gets idle slices instead."""
        assigned = self._assigned.get(taken.uid)
        swapped = taken.lost_to_others and assigned is not None and set(assigned.how) == {"idle"}
        return replace(taken, swapped=True) if swapped else taken

    def _serve(self, pod: Pod) -> NoSlice | None:
        """Give slices to a pod, unless a node offers existing slices; return the refusal if the pod gets no slices."""
        if (offer := self._rules.existing_offer(pod)) is not None:
            self._elsewhere[pod.uid] = offer
            return None
        if (refusal := self._refusals.at_once(pod)) is not None:
            return refusal
        ask = self._asks.of(pod)
        failed = {state.number for state in self._failed_on.get(pod.uid, ())}
        search, later = self._search(pod, ask), failed | self._avoided
        found = search.best(pod, later) or self._displacing(pod, ask, later) or self._again(pod, ask)
        # An avoided node comes last: the API server has rejected its annotation, so slices decided there would hardly
        # be made. Slices of less important pods, and of a node where the pod failed long ago, can help at once.
        found = found or search.best(pod, failed)
        if found is None:
            return self._refusals.refusal(pod)
        self._give(pod, *found)
        return None

    def _search(self, pod: Pod, ask: AskedSlices) -> SliceSearch:
        """Return the search for a pod, one for all pods that are alike."""
        owner = self._separated_owner(pod)
        if (search := self._searches.get((pod.alike, owner))) is None:
            largest = self._asks.largest(pod)
            if (ranking := self._rankings.get(largest)) is None:
                ranking = self._rankings[largest] = Ranking(largest, self._states, self._changes)
            search = SliceSearch(ask, ranking, self._refusal, owner)
            self._searches[pod.alike, owner] = search
        return search

    def _separated_owner(self, pod: Pod) -> str | None:
        """Return the owner of a pod, None if the owner makes no difference.

        The owner matters if a policy separates replicas and the owner has pods on nodes or pods with kept slices.
        """
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
        """The owners of pods on nodes, and of waiting pods with kept slices."""
        owners = {owner for state in self._states for owner in state.node.replicas}
        return owners | {pod.owner for state in self._states for pod in state.assigned_pods}

    def _refusal(self, pod: Pod, state: NodeState) -> str | None:
        return self._rules.runs_on(pod, state.node.name, state.assigned_pods)

    def _give(self, pod: Pod, state: NodeState, choice: NodeChoice) -> None:
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

    def _again(self, pod: Pod, ask: AskedSlices) -> tuple[NodeState, NodeChoice] | None:
        """Return a node to try again, the oldest failure of the pod first; None if no attempt is due or possible."""
        failed = sorted(self._failed_on.get(pod.uid, ()), key=lambda each: (each.failed[pod.uid].at, each.number))
        for state in failed:
            if self._rules.retry_at(state.failed[pod.uid]) <= self._now:
                choice = ask.choose(state, self._separated_owner(pod))
                if choice is not None and self._refusal(pod, state) is None:
                    return state, choice
        return None

    def _displacing(self, pod: Pod, ask: AskedSlices, failed: set[int]) -> tuple[NodeState, NodeChoice] | None:
        """Take slices that are not offered yet from less important pods, and return the node and the choice there.

        As few pods as needed lose slices. Return None, and take no slices, if no node would have enough room.
        """
        for state in self._contested:
            # Many pods that are alike may ask for the same slices in vain.
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

    def _needed(self, pod: Pod, ask: AskedSlices, state: NodeState) -> list[Pod]:
        """Return less important pods that have to lose slices to a pod; none if the loss would not help the pod."""

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
        # The first victims may have slices on GPUs that the choice does not need.
        choice = ask.choose(trial)
        gpus = {trial.gpus[number].gpu.uuid for number, _ in choice.picks} if choice is not None else set()
        there = [each for each in needed if any(kept.gpu in gpus for kept in state.kept[each.uid])]
        return there if helps(_without(state, there)) else needed

    def _next(self) -> datetime | None:
        """Return the earliest time to take slices back, try a node again, end an offer or forget an unseen pod.

        None stands for never.
        """
        times = [] if self._forgets_at is None else [self._forgets_at]
        times += [self._rules.gives_up_at(each.kept) for each in self._assigned.values()]
        times += [offer.until for offer in self._elsewhere.values()]
        times += [
            at
            for uid, states in self._failed_on.items()
            if uid in self._by_uid and uid not in self._assigned
            for state in states
            if (at := self._rules.retry_at(state.failed[uid])) > self._now
        ]
        return min(times, default=None)


def _without(state: NodeState, victims: Sequence[Pod]) -> NodeState:
    """Return a node without the slices kept for some pods."""
    trial = state.copy()
    for victim in victims:
        trial.release(victim.uid)
    return trial


def _kept(state: NodeState, uid: str, pod: Pod) -> Assigned:
    indexes = {each.gpu.uuid: each.gpu.index for each in state.gpus}
    kept = state.kept[uid]
    return Assigned(uid, pod.label, pod.created, state.node.name, kept, tuple(indexes[each.gpu] for each in kept))
