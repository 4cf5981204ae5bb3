"""Why a pod gets no GPU, or has the one it has, as data; `explained` puts it into words."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from gpushare_plugin import __version__
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.inspect.cluster.report import CORDONS_NOT_READ, Part, unit_name
from gpushare_plugin.model.account.annotations import (
    ALLOCATION,
    PROMISE,
    AnnotationError,
    read_allocation,
    read_promise,
)
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.node import GPU_COUNT, Node
from gpushare_plugin.model.account.occupancy import NodeAccount, locate
from gpushare_plugin.model.account.pod import Pod, Shares
from gpushare_plugin.model.account.request import ANY_GPU, PodRequest, Wishes
from gpushare_plugin.model.account.search.verdicts import Fit, GpuShortage, Misfit
from gpushare_plugin.model.account.search.victims import Eviction
from gpushare_plugin.model.choice.policies import DEFAULT_POLICY
from gpushare_plugin.model.slices.slice import slice_of

_EXTENDER_REMEDY = "scheduler.enabled of the chart runs one, and --extender-namespace names another namespace"

_MOST_CURED = 5
"""Nodes for which it is searched which pods have to end, those that lack least first."""


class ExtenderStanding(Struct, frozen=True):
    """What is known of the scheduler extender: its default placement policy, and whether one runs.

    `source` says who names the policy, `assumed` why it is only assumed, if it is. `stopped` says why none runs, None
    where one does, or nobody knows; `installed` is whether there is a Lease of one.
    """

    policy: str = DEFAULT_POLICY
    source: str | None = None
    assumed: str | None = "the scheduler extender was not asked"
    stopped: str | None = None
    installed: bool = True


class Told(Struct, frozen=True):
    """What a pod itself says, beside what the account knows of it; `waits` are sentences on what it waits for.

    `extender` is what is known of the scheduler extender. `slices` are sentences on slices that are made for it.
    """

    annotations: Mapping[str, str]
    scheduler: str = ""
    waits: tuple[str, ...] = ()
    extender: ExtenderStanding = ExtenderStanding()
    slices: tuple[str, ...] = ()


class GpuVerdict(Part, frozen=True, kw_only=True):
    """What one GPU has for the pod: `missing` units more are needed there.

    `reason` says why the pod cannot have all that the GPU has, `holders` are the pods that have units of it. `wanted`
    is whether the pod accepts the GPU, by its annotations.
    """

    index: int
    uuid: str
    units: int
    free: int
    missing: int
    reason: str | None = None
    holders: tuple[str, ...] = ()
    wanted: bool = True


class NodeVerdict(Part, frozen=True, kw_only=True):
    """Whether the pod fits on one node.

    Where it fits, `score` is how well, from 0 to 10, and `place` the units of each GPU by container and resource;
    `indexes` are those of these GPUs.
    Where not, `cause` is the same for all nodes with the same cause, `reason` has the numbers, and `missing` units of
    `resource` are lacking. `smaller` is the largest amount that would fit instead, `ending` are pods that would have to
    end. `unplaced` units are held on unknown GPUs, and `also` are what else keeps new pods from the node.
    """

    node: str
    fits: bool
    score: int | None = None
    place: Mapping[str, Mapping[str, Mapping[str, int]]] | None = None
    indexes: Mapping[str, int] | None = None
    cause: str | None = None
    reason: str | None = None
    resource: str | None = None
    missing: int | None = None
    smaller: int | None = None
    gpus: tuple[GpuVerdict, ...] = ()
    ending: tuple[str, ...] | None = None
    unplaced: int = 0
    also: tuple[str, ...] = ()


class Unoffered(Part, frozen=True, kw_only=True):
    """A resource that the pod asks for and no node offers; `nearest` is one that is offered and has a similar name.

    `made` is whether it is a slice that automatic partitioning makes.
    """

    resource: str
    amount: int
    nearest: str | None = None
    made: bool = False


class Granted(Part, frozen=True, kw_only=True):
    """Where a running pod has its units of one resource.

    `gpus` are units by the UUID of the GPU, `unplaced` those of which nothing says where they are. `source` says who
    places them: allocation (the daemon of the node), promise (the scheduler extender), indexes (the annotations of
    Aliyun's tools) or None. `promised` and `allocated` are what the annotations say, container by container.
    """

    resource: str
    amount: int
    unit: str
    gpus: Mapping[str, int]
    indexes: Mapping[str, int]
    unplaced: int = 0
    source: str | None = None
    promised: Mapping[str, Mapping[str, int]] | None = None
    allocated: Mapping[str, Mapping[str, int]] | None = None
    drift: bool = False


State = Literal["pending", "placed", "ended", "not ours"]


class Explanation(Part, frozen=True, kw_only=True):
    """Everything that `gpushare explain` says; `version` changes when readers of the old one would be wrong.

    `amounts` are what the pod takes of each extended resource as Kubernetes counts it, `gpu_count` the GPUs that memory
    is split over. `policy` is the placement policy that counts, and `policy_source` who chose it, or
    `policy_assumed` why nobody knows. `problem` is why no node can take the pod, `ignored` what of its wishes is not
    understood, `slices` what is made for a pod that waits for slices, or why nothing is, `notes` what the verdicts
    on `nodes` leave out. There is no verdict where all that the pod asks for are slices that no node offers.
    `promise_problem` says what is wrong with a promise that cannot be read. `policy` is None for a pod that somebody
    else placed. `extender_problem` says that no scheduler extender runs, where a pod waits that needs one.
    """

    version: Literal[1] = 1
    gpushare: str = __version__
    namespace: str
    pod: str
    state: State
    node: str | None = None
    scheduler: str = ""
    amounts: Mapping[str, int]
    gpu_count: int = 1
    policy: str | None = None
    policy_source: str | None = None
    policy_assumed: str | None = None
    problem: str | None = None
    ignored: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    not_offered: tuple[Unoffered, ...] = ()
    nodes: tuple[NodeVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    granted: tuple[Granted, ...] = ()
    promise_time: str | None = None
    promise_node: str | None = None
    promise_problem: str | None = None
    extender_problem: str | None = None


def explain(account: ClusterAccount, pod: Pod, told: Told) -> Explanation:
    """Explain a pod, given the account of its cluster."""
    nodes = account.nodes.values()
    offered = {name for node in nodes for name in (*node.extended, *_offered(account.node(node.name)))}
    request = pod.request
    about = Explanation(
        namespace=pod.namespace,
        pod=pod.name,
        state=_state(account, pod, told),
        node=pod.node,
        scheduler=told.scheduler,
        amounts=request.amounts,
        gpu_count=request.gpu_count,
        problem=request.problem,
        ignored=request.ignored,
        waits=told.waits,
        slices=told.slices,
        not_offered=tuple(
            Unoffered(
                resource=name,
                amount=amount,
                nearest=None if told.slices else _nearest(name, offered),
                made=bool(told.slices) and slice_of(name) is not None,
            )
            for name, amount in request.amounts.items()
            if name not in offered and pod.node is None  # of a pod that has a node, only that node is read
        ),
    )
    if pod.node is None:
        # A verdict on slices that are still to be made would be one on nothing.
        judged = not told.slices or not offered.isdisjoint(request.amounts)
        verdicts = tuple(_verdicts(account, pod)) if about.state == "pending" and judged else ()
        notes = _notes(nodes) if verdicts else ()
        problem = _extender_problem(request, told.extender) if about.state == "pending" else None
        policy = _policy(request.policy, None, told)
        return replace(about, nodes=verdicts, notes=notes, extender_problem=problem, **policy)
    return replace(about, **_placed(account.node(pod.node), pod, told))


def _state(account: ClusterAccount, pod: Pod, told: Told) -> State:
    if pod.ended:
        return "ended"
    if pod.node is not None:
        return "placed"
    return "pending" if told.slices or account.concerns(pod.request) else "not ours"


def _offered(account: NodeAccount) -> Iterator[str]:
    """Return the resources that a node offers by its record, or as Aliyun's plugin does."""
    return (name for name, each in account.resources.items() if each.offer.kind)


def _nearest(name: str, offered: Iterable[str]) -> str | None:
    requestable = sorted(set(offered) - {GPU_COUNT})  # which only says how many GPUs a node has
    found = difflib.get_close_matches(name, requestable, n=1, cutoff=0.7)
    return found[0] if found else None


def _verdicts(account: ClusterAccount, pod: Pod) -> Iterator[NodeVerdict]:
    """Yield the verdict on each node: those where it fits, best first, then those that lack least."""
    nodes = account.nodes
    verdicts = account.fits_pod(pod, list(nodes))
    fitting = [name for name in nodes if isinstance(verdicts[name], Fit)]
    for name in sorted(fitting, key=lambda name: (-_score(verdicts[name]), name)):
        yield _fit(account, nodes[name], pod, _score(verdicts[name]))
    misfits = {name: verdict for name in nodes if isinstance(verdict := verdicts[name], Misfit)}
    order = sorted(misfits, key=lambda name: (misfits[name].account is None, misfits[name].missing, name))
    for number, name in enumerate(order):
        yield _misfit(account, nodes[name], pod, misfits[name], cured=number < _MOST_CURED)


def _notes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return what is not known of nodes with Aliyun's plugin, where there are any."""
    return (CORDONS_NOT_READ,) if any(node.offers and not node.recorded for node in nodes) else ()


def _score(verdict: Fit | Misfit) -> int:
    return verdict.score if isinstance(verdict, Fit) else 0


def _fit(account: ClusterAccount, node: Node, pod: Pod, score: int) -> NodeVerdict:
    place = account.place_pod(pod, node.name)
    known = {gpu.name: gpu.index for each in account.node(node.name).resources.values() for gpu in each.offer.gpus}
    indexes = {share.gpu: known[share.gpu] for share in place.shares}
    return NodeVerdict(
        node=node.name, fits=True, score=score, place=place.containers, indexes=indexes, also=_also(node)
    )


def _also(node: Node) -> tuple[str, ...]:
    found = ["the node is not ready"] if not node.ready else []
    return (*found, *(["the node is cordoned"] if node.unschedulable else []))


def _misfit(account: ClusterAccount, node: Node, pod: Pod, misfit: Misfit, *, cured: bool) -> NodeVerdict:
    request = pod.request
    about = NodeVerdict(node=node.name, fits=False, cause=misfit.summary, reason=misfit.reason, also=_also(node))
    if misfit.account is None:
        for name, amount in request.amounts.items():
            if misfit.summary == f"the node does not offer {name}":
                reason = f"the node does not offer {name}: all {amount} units are missing"
                return replace(about, reason=reason, resource=name, missing=amount)
        return about
    holders: dict[str, list[str]] = {}
    for each in misfit.account.holdings:
        holders.setdefault(each.gpu, []).append(f"{each.pod.label} ({each.units})")
    ending = None
    if cured and misfit.curable:
        there = account.node(node.name).pods
        found = account.victims(pod, node.name, Eviction(certain=(), others=there))
        ending = tuple(each.label for each in there if each in found) if found else None
    return replace(
        about,
        resource=misfit.account.offer.resource,
        missing=misfit.missing,
        smaller=_smaller(misfit),
        gpus=tuple(_gpu(each, holders.get(each.gpu.name, ()), request.wishes) for each in misfit.gpus),
        ending=ending,
        unplaced=sum(each.units for each in misfit.account.unplaced),
    )


def _smaller(misfit: Misfit) -> int | None:
    """Return the largest amount of the resource that would fit now, None where none does."""
    if not misfit.count:
        return sum(misfit.free) or None
    largest = sorted(misfit.free, reverse=True)[: misfit.count]
    return (largest[-1] * misfit.count or None) if len(largest) == misfit.count else None


def _gpu(shortage: GpuShortage, holders: Sequence[str], wishes: Wishes) -> GpuVerdict:
    return GpuVerdict(
        index=shortage.gpu.index,
        uuid=shortage.gpu.name,
        units=shortage.gpu.units,
        free=shortage.free,
        missing=shortage.missing,
        reason=shortage.reason,
        holders=tuple(holders),
        wanted=wishes.refusal(shortage.gpu.name, shortage.gpu.product) is None,
    )


def _placed(account: NodeAccount, pod: Pod, told: Told) -> dict[str, object]:
    """Return why a pod is where it is."""
    update = _promise(told)
    if PROMISE in told.annotations:
        update |= _policy(pod.request.policy, account.node, told)
    if ALLOCATION in told.annotations:
        try:
            read_allocation(told.annotations[ALLOCATION])
        except AnnotationError as error:
            update["ignored"] = (*pod.request.ignored, str(error))
    update["granted"] = tuple(_granted(account, pod, name) for name in pod.request.amounts if name in account.resources)
    return update


def _promise(told: Told) -> dict[str, object]:
    """Return what the annotation of the scheduler extender says, or what is wrong with it."""
    if PROMISE not in told.annotations:
        return {}
    try:
        promise = read_promise(told.annotations[PROMISE])
    except AnnotationError as error:
        return {"promise_problem": str(error)}
    return {"promise_time": promise.time, "promise_node": promise.node}


def _policy(of_pod: str | None, node: Node | None, told: Told) -> dict[str, object]:
    """Return the placement policy that counts, and who chose it."""
    if of_pod is not None:
        return {"policy": of_pod, "policy_source": "the pod"}
    if node is not None and node.policy is not None:
        return {"policy": node.policy, "policy_source": node.policy_source}
    default = told.extender
    return {"policy": default.policy, "policy_source": default.source, "policy_assumed": default.assumed}


def _extender_problem(request: PodRequest, standing: ExtenderStanding) -> str | None:
    """Return that no scheduler extender runs, and what that means for a pod that waits; None where it needs none."""
    if standing.stopped is None:
        return None
    if request.gpu_count > 1:
        means = f"only an extender gives a pod parts of {request.gpu_count} GPUs"
    elif request.wishes != ANY_GPU:
        means = "only an extender heeds which GPUs it wants"
    elif standing.installed:
        means = "a kube-scheduler that asks it leaves the pod pending"
    else:
        return None
    return f"No scheduler extender runs: {standing.stopped}; {means}. {_EXTENDER_REMEDY}"


def _granted(account: NodeAccount, pod: Pod, resource: str) -> Granted:
    offer = account.resources[resource].offer
    located = locate(pod, offer, account.node)
    return Granted(
        resource=resource,
        amount=pod.request.amounts[resource],
        unit=unit_name(offer),
        gpus={each.gpu: each.units for each in located.holdings},
        indexes={gpu.name: gpu.index for gpu in offer.gpus},
        unplaced=sum(each.units for each in located.unplaced),
        source=next((each.source for each in located.holdings), None),
        promised=_by_container(pod.promise, resource),
        allocated=_by_container(pod.allocation, resource),
        drift=any(each.pod.uid == pod.uid for each in account.resources[resource].drift.pods),
    )


def _by_container(shares: Shares | None, resource: str) -> dict[str, dict[str, int]] | None:
    if shares is None:
        return None
    found: dict[str, dict[str, int]] = {}
    for share in shares:
        if share.resource == resource:
            found.setdefault(share.container, {})[share.gpu] = share.units
    return found
