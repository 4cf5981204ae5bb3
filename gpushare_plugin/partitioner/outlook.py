"""The outlook of a pod that waits for slices, in words: the decision of the partitioner, made without a partitioner."""

from collections.abc import Iterator
from datetime import datetime
from http import HTTPStatus

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.policies import DEFAULT_POLICY, POLICIES
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.collection import Gone
from gpushare_plugin.kube.lease import read_lease, silence
from gpushare_plugin.kube.names import PARTITIONER_LEASE, PATIENCE
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.whole_cluster.overview import Overview
from gpushare_plugin.ledger.annotations import PLACEMENT
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.partition import words
from gpushare_plugin.partition.decide import Decisions, decide
from gpushare_plugin.partition.taking_back import DEFAULT_PATIENCE, LEAST_PATIENCE, MOST_PATIENCE
from gpushare_plugin.partitioner.known import Known

_REMEDY = "partitioning.enabled of the chart runs one, and --partitioner-namespace names another namespace"


class Partitioners(Struct, frozen=True):
    """The configuration of the leading partitioner in the Lease."""

    runs: bool | None
    """Whether a partitioner leads, None if unknown."""
    policy: str = DEFAULT_POLICY
    """The policy for pods and nodes that name no policy; the default if unknown."""
    patience: float = DEFAULT_PATIENCE
    """Seconds for a pod to take the slices made for the pod; the default if unknown."""
    problem: str | None = None
    """Why no partitioner leads, or why the Lease cannot be read; None if a partitioner leads."""


class JudgedOverview(Overview):
    """An overview of a cluster, with the rules for where pods can run."""

    def __init__(self, policy: str = DEFAULT_POLICY) -> None:
        """Begin without Nodes and Pods; `policy` is the default of the scheduler extender."""
        super().__init__(policy)
        self.known = Known(policy, self._decide_anew)
        self._decided: tuple[Partitioners, Decisions] | None = None

    @property
    def needs_claims(self) -> bool:
        """Whether a node gives GPUs by claim, or a pod waits that has claims."""
        return any(each.claims for each in self.without_node.values()) or self.gives_by_claim

    def put_node(self, node: Node) -> None:
        """Take in the present state of a node."""
        super().put_node(node)
        self.known.put_node(node)

    def put_pod(self, found: ApiPod) -> None:
        """Take in the present state of a Pod; a Pod without GPUs counts too, because it takes room of its node."""
        super().put_pod(found)
        self.known.put_pod(found)

    def remove_node(self, name: str) -> None:
        """Forget a Node."""
        super().remove_node(name)
        self.known.remove_node(Gone("", "", name))

    def remove_pod(self, uid: str) -> None:
        """Forget a Pod."""
        super().remove_pod(uid)
        self.known.remove_pod(Gone(uid, "", ""))

    def slices_for(self, pod: Pod, leading: Partitioners, now: datetime) -> tuple[str, ...]:
        """Return sentences about the slices for a pod that waits; nothing for a pod that no partitioner concerns."""
        # Where nothing is partitioned, slices are those of configs, and other names are none of ours.
        waits = any(each.uid == pod.uid for each in self.known.waiting)
        concerns = leading.runs or self.known.node_count if pod.slices else waits
        return tuple(outlook(self.known, pod.uid, leading, self._decisions(leading, now))) if concerns else ()

    def slices_as_if(self, found: ApiPod, leading: Partitioners, now: datetime) -> tuple[str, ...]:
        """Return sentences about the slices that a pod would get if it was created now, as the youngest pod."""
        uid, decided = found.metadata.uid, self._decided
        self.known.put_pod(found)
        try:
            # Reasons are found as they are read: while the pod is known.
            return tuple(_as_if(uid, leading, decisions(self.known, leading, now)))
        finally:
            self.known.remove_pod(Gone(uid, "", ""))
            self._decided = decided  # nothing has changed

    def _decisions(self, leading: Partitioners, now: datetime) -> Decisions:
        """Return what a partitioner would decide now; the same until that can have changed."""
        decided = self._decided
        if decided is None or decided[0] != leading or (decided[1].next_at or now) < now:
            decided = self._decided = leading, decisions(self.known, leading, now)
        return decided[1]

    def _decide_anew(self) -> None:
        self._decided = None


async def partitioners(client: Client, namespace: str, now: datetime) -> Partitioners:
    """Return the configuration in the Lease of the partitioners, at an aware time."""
    name = f"Lease {namespace}/{PARTITIONER_LEASE}"
    try:
        lease = await read_lease(client, namespace, PARTITIONER_LEASE)
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return Partitioners(runs=False, problem=f"No partitioner runs: there is no {name}; {_REMEDY}")
        why = "you may not get" if error.status == HTTPStatus.FORBIDDEN else "gpushare cannot read"
        return Partitioners(runs=None, problem=f"It is not known whether a partitioner runs: {why} the {name}")
    if (silent := silence(lease, now)) is not None:
        return Partitioners(runs=False, problem=f"No partitioner runs: {silent} {name}; {_REMEDY}")
    annotations = lease.metadata.annotations
    policy = annotations.get(PLACEMENT, "")
    patience = _patience(annotations.get(PATIENCE, ""))
    return Partitioners(runs=True, policy=policy if policy in POLICIES else DEFAULT_POLICY, patience=patience)


def _patience(text: str) -> float:
    """Return the patience in the annotation of a Lease, the default for a value that no partitioner can have."""
    try:
        found = float(text)
    except ValueError:
        return DEFAULT_PATIENCE
    # NaN is in no range.
    return found if LEAST_PATIENCE <= found <= MOST_PATIENCE else DEFAULT_PATIENCE


def decisions(known: Known, leading: Partitioners, now: datetime) -> Decisions:
    """Return what the leading partitioner, or one that led, would decide at an aware time."""
    return decide(known.nodes, known.waiting, now, known.rules(now, leading.patience, leading.policy))


def _as_if(uid: str, leading: Partitioners, decided: Decisions) -> Iterator[str]:
    if leading.problem is not None:
        yield leading.problem
    if (refused := decided.refused.get(uid)) is not None:
        yield words.refusal(refused)
    elif (assigned := decided.assigned.get(uid)) is not None:
        yield words.assignment(assigned, "would be made")


def outlook(known: Known, uid: str, leading: Partitioners, decided: Decisions) -> Iterator[str]:
    """Yield sentences about the slices for a waiting pod, or why no slices can be made, as was decided."""
    if leading.problem is not None:
        yield leading.problem
    if uid not in {pod.uid for pod in known.waiting}:
        yield "No slice is made for a pod that has scheduling gates or is being deleted"
        return
    for taken in decided.taken_back:
        if taken.uid == uid:
            yield words.taken_back(taken)
    yield from _of_pod(known, uid, leading, decided)


def _of_pod(known: Known, uid: str, leading: Partitioners, decided: Decisions) -> Iterator[str]:
    if (refused := decided.refused.get(uid)) is not None:
        yield words.refusal(refused)
    elif (offer := decided.elsewhere.get(uid)) is not None:
        resources = ", ".join(each.resource for pod in known.waiting if pod.uid == uid for each in pod.slices)
        yield f"{offer.node} offers {resources}, and kube-scheduler has to bind the pod there"
    elif (assigned := decided.assigned.get(uid)) is None:
        yield "The decision on this pod meets a defect of gpushare: see slice_decision_broken in the partitioner's log"
    elif assigned.how:
        who = "A partitioner would decide" if leading.runs is False else "To be decided"
        yield f"{who}: {words.assignment(assigned)}"
    elif known.offers_kept(assigned.node, assigned.kept):
        yield f"{words.assignment(assigned)}; the node offers it, and kube-scheduler has to bind the pod there"
    else:
        yield f"{words.assignment(assigned)}; the daemon of the node has not made it yet"
