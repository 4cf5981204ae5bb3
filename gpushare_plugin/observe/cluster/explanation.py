"""Why a pod gets no GPU, or has its GPUs, as data and sentences; `explained` makes the text of the command."""

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Literal

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.base.text import nearest, some_of
from gpushare_plugin.base.version import __version__
from gpushare_plugin.ledger.annotations import (
    ALLOCATION,
    HAMI_MODELS,
    HAMI_NOT_MODELS,
    HAMI_NOT_UUIDS,
    HAMI_UUIDS,
    LIMITS,
    PROMISE,
    AnnotationError,
    read_allocation,
    read_promise,
)
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.kube_scheduler import reasons_beside_room
from gpushare_plugin.ledger.node import GPU_COUNT, Node, OfferedGpu
from gpushare_plugin.ledger.occupancy import NodeAccount, Placed, locate
from gpushare_plugin.ledger.packed import NodeLoss
from gpushare_plugin.ledger.pod import Pod, Shares
from gpushare_plugin.ledger.refusal import Shortage
from gpushare_plugin.ledger.request import ANY_GPU, PodRequest, Wishes
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.ledger.verdicts import Fit, Misfit, NodeMisfit
from gpushare_plugin.ledger.victims import EvictionCosts, VictimCandidates
from gpushare_plugin.observe.cluster.deciding import deciding
from gpushare_plugin.observe.cluster.limits import ContainerLimit, container_limits
from gpushare_plugin.observe.cluster.report import CORDONS_NOT_READ, unit_name
from gpushare_plugin.observe.parts import Part
from gpushare_plugin.slices.slice import slice_of

_EXTENDER_REMEDY = "scheduler.enabled of the chart runs one, and --extender-namespace names another namespace"

_MOST_CURED = 5
"""The most nodes to search for pods that have to end: the nodes with the fewest missing units."""


_MOST_NAMED = 5
"""The most wishes of a pod, and the most models, in a sentence."""


class Told(Struct, frozen=True):
    """The facts about a pod that the account does not have."""

    annotations: Mapping[str, str]
    """The annotations of the pod."""
    scheduler: str = ""
    """The name of the pod's scheduler."""
    waits: tuple[str, ...] = ()
    """Sentences on the reasons of Kubernetes why the pod waits, or why the pod failed."""
    extender: ExtenderStanding = ExtenderStanding()
    """The known state of the scheduler extender."""
    slices: tuple[str, ...] = ()
    """Sentences on slices being made for the pod, or on why no slices are."""
    claims: tuple[str, ...] = ()
    """Sentences on the ResourceClaims of the pod, and on the GPUs that claims can get."""
    losses: Mapping[str, NodeLoss] = {}
    """What later pods lose on each node that fits, if the policy `packing` decides there."""


class GpuVerdict(Part, frozen=True, kw_only=True):
    """The units of a GPU for the pod."""

    index: int
    """The index of the GPU."""
    uuid: str
    """The UUID of the GPU."""
    units: int
    """The units of the GPU."""
    free: int
    """The units free for the pod."""
    missing: int
    """The further units that the pod would need on the GPU."""
    reason: str | None = None
    """Why the pod cannot have all units of the GPU; None for no reason but the holders."""
    holders: tuple[str, ...] = ()
    """The pods with units of the GPU, each with the number of units."""
    wanted: bool = True
    """Whether the annotations of the pod accept the GPU."""


class NodeVerdict(Part, frozen=True, kw_only=True):
    """The verdict of a node on the pod."""

    node: str
    """The name of the node."""
    fits: bool
    """Whether the pod fits on the GPUs of the node."""
    score: int | None = None
    """The score of a fitting node, from 0 to 10."""
    loss: float | None = None
    """What later pods would lose of a fitting node, in GPUs, by the policy `packing`; None by another policy."""
    place: Mapping[str, Mapping[str, Mapping[str, int]]] | None = None
    """The units that the pod would get on a fitting node, by container, resource and GPU."""
    indexes: Mapping[str, int] | None = None
    """The index of each GPU in `place`."""
    cause: str | None = None
    """Why the pod does not fit, without the numbers of the node."""
    reason: str | None = None
    """Why the pod does not fit, with the numbers of the node."""
    resource: str | None = None
    """The resource with missing units."""
    missing: int | None = None
    """The missing units."""
    smaller: int | None = None
    """The largest amount of the resource that would fit; None for no amount."""
    fits_sum: bool = False
    """Whether the GPUs of a node where the pod does not fit have enough free units in sum, as autoscalers count."""
    gpus: tuple[GpuVerdict, ...] = ()
    """The units of each GPU for the pod."""
    ending: tuple[str, ...] | None = None
    """The pods that would have to end; None if not searched, or not enough."""
    unplaced: int = 0
    """The units of the resource held on unknown GPUs."""
    also: tuple[str, ...] = ()
    """Reasons why the node does not take the pod, GPUs aside: not ready, cordoned, a taint, node selector, affinity."""


class Unoffered(Part, frozen=True, kw_only=True):
    """A resource requested by the pod and offered by no node."""

    resource: str
    """The name of the resource."""
    amount: int
    """The requested units."""
    nearest: str | None = None
    """An offered resource with a similar name; None if no name is similar."""
    made: bool = False
    """Whether the resource is a slice made by automatic partitioning."""


class Granted(Part, frozen=True, kw_only=True):
    """The units of a resource that a bound pod has."""

    resource: str
    """The name of the resource."""
    amount: int
    """The units of the pod's request."""
    unit: str
    """The name of the unit."""
    gpus: Mapping[str, int]
    """The units by the UUID of the GPU."""
    indexes: Mapping[str, int]
    """The index of each GPU in the resource, by UUID."""
    unplaced: int = 0
    """The units on unknown GPUs."""
    source: str | None = None
    """The source of the GPUs.

    `allocation`: the daemon of the node; `promise`: the scheduler extender; `indexes`: the annotations of Aliyun's
    tools; None: no source.
    """
    promised: Mapping[str, Mapping[str, int]] | None = None
    """The promised units by container and GPU; None without a readable promise."""
    allocated: Mapping[str, Mapping[str, int]] | None = None
    """The units by container and GPU in the daemon's annotation; None without a readable annotation."""
    drift: bool = False
    """Whether the pod has drifted: see `pod.drift`."""


State = Literal["pending", "placed", "ended", "not ours"]


class Explanation(Part, frozen=True, kw_only=True):
    """The whole output of `gpushare explain`."""

    version: Literal[1] = 1
    """The version of the format, raised by changes that would mislead older readers."""
    gpushare: str = __version__
    """The version of gpushare."""
    namespace: str
    """The namespace of the pod."""
    pod: str
    """The name of the pod."""
    state: State
    """The state of the pod; a pod without a node and without a request for managed resources is `not ours`."""
    verdict: str = ""
    """What keeps the pod waiting and what to change, or what the pod has, in one sentence; empty without a verdict."""
    node: str | None = None
    """The node of the pod; None for a waiting pod."""
    scheduler: str = ""
    """The name of the pod's scheduler."""
    amounts: Mapping[str, int]
    """The units of each extended resource that the pod takes, by Kubernetes' rule: see `effective`."""
    gpu_count: int = 1
    """The number of GPUs to split memory over."""
    policy: str | None = None
    """The placement policy in effect; None for a pod placed without the scheduler extender."""
    policy_source: str | None = None
    """The origin of the policy, in words."""
    policy_assumed: str | None = None
    """Why the policy is only assumed; None for a known policy."""
    problem: str | None = None
    """Why no node can take the pod; None for no such reason."""
    held_back: str | None = None
    """Why no scheduler looks at the pod: a scheduling gate, or the pod is being deleted; None for no such reason."""
    ignored: tuple[str, ...] = ()
    """Sentences on wishes and annotations of the pod that cannot be understood."""
    waits: tuple[str, ...] = ()
    """Sentences on the reasons of Kubernetes why the pod waits, or why the pod failed."""
    slices: tuple[str, ...] = ()
    """Sentences on slices being made for the pod, or on why no slices are."""
    claims: tuple[str, ...] = ()
    """Sentences on the ResourceClaims of the pod, and on the GPUs that claims can get."""
    not_offered: tuple[Unoffered, ...] = ()
    """The requested resources that no node offers."""
    nodes: tuple[NodeVerdict, ...] = ()
    """The verdicts of nodes; empty if the pod requests nothing but slices that no node offers."""
    notes: tuple[str, ...] = ()
    """Sentences on facts left out of the verdicts."""
    granted: tuple[Granted, ...] = ()
    """The resources of a bound pod."""
    promise_time: str | None = None
    """The time in the promise."""
    promise_node: str | None = None
    """The node in the promise."""
    promise_problem: str | None = None
    """Why the promise cannot be read."""
    extender_problem: str | None = None
    """A sentence on the missing scheduler extender, if a waiting pod needs an extender."""
    wishes_problem: str | None = None
    """A sentence on annotations of a waiting pod that no GPU meets; None if a GPU of the cluster meets them all."""
    limits: tuple[ContainerLimit, ...] = ()
    """Whether the limits of the containers of a bound pod are in effect, by the annotation of the node's daemon."""


def explain(account: ClusterAccount, pod: Pod, told: Told) -> Explanation:
    """Return the explanation of a pod from the account of the cluster."""
    return next(found for found in explain_in_steps(account, pod, told) if found is not None)


def explain_in_steps(
    account: ClusterAccount, pod: Pod, told: Told, *, whole: bool = True
) -> Iterator[Explanation | None]:
    """Yield None after each step, and in the end the explanation of a pod: thousands of nodes take seconds.

    The account may change between two steps; each node is judged as the node is then. An explanation that is not
    `whole` has what the verdict needs: the GPUs of few nodes, no numbers in words, no places, and no other pods.
    """
    nodes, request = account.nodes.values(), pod.request
    offered = _offered_by(account)
    about = Explanation(
        namespace=pod.namespace,
        pod=pod.name,
        state=_state(account, pod, told),
        node=pod.node,
        scheduler=told.scheduler,
        amounts=request.amounts,
        gpu_count=request.gpu_count,
        problem=request.problem,
        held_back=_held_back(pod),
        ignored=request.ignored,
        waits=told.waits,
        slices=told.slices,
        claims=told.claims,
        # Of a bound pod, the account has the node of the pod alone.
        not_offered=() if pod.node is not None else tuple(_unoffered(request, offered, made=bool(told.slices))),
    )
    if pod.node is None:
        # A verdict makes no sense while all requested slices are still to be made.
        judged = not told.slices or not offered.isdisjoint(request.amounts)
        by_units = account.concerns(request) or not told.claims
        verdicts: list[NodeVerdict] = []
        decided = about.state == "pending" and judged and by_units
        for verdict in _verdicts(account, pod, told.losses, whole=whole) if decided else ():
            if verdict is not None:
                verdicts.append(verdict)
            yield None
        notes = _notes(nodes) if verdicts else ()
        problem = _extender_problem(request, told.extender) if about.state == "pending" else None
        unmet = _wishes_problem(account, request) if verdicts else None
        found = {"notes": notes, "extender_problem": problem, "wishes_problem": unmet}
        yield replace(about, nodes=tuple(verdicts), **found, **_policy(request.policy, None, told))
    else:
        yield replace(about, **_placed(account.account_of(pod.node), pod, told))


def unoffered(account: ClusterAccount, request: PodRequest, *, made: bool) -> tuple[Unoffered, ...]:
    """Return the requested resources that no node offers; `made` says whether slices are made for the pod."""
    return tuple(_unoffered(request, _offered_by(account), made=made))


def _offered_by(account: ClusterAccount) -> AbstractSet[str]:
    nodes = account.nodes.values()
    return {name for node in nodes for name in (*node.extended, *_offered(account.account_of(node.name)))}


def _unoffered(request: PodRequest, offered: AbstractSet[str], *, made: bool) -> Iterator[Unoffered]:
    for name, amount in request.amounts.items():
        if name not in offered:
            nearest_name = None if made else _nearest(name, offered)
            is_made = made and slice_of(name) is not None
            yield Unoffered(resource=name, amount=amount, nearest=nearest_name, made=is_made)


def _held_back(pod: Pod) -> str | None:
    if pod.node is not None or pod.ended:
        return None
    if pod.ending:
        return "The pod is being deleted"
    return f"Scheduling gate {pod.gates[0]}: no scheduler looks at the pod until it is removed" if pod.gates else None


def _state(account: ClusterAccount, pod: Pod, told: Told) -> State:
    if pod.ended:
        return "ended"
    if pod.node is not None:
        return "placed"
    return "pending" if told.slices or told.claims or account.concerns(pod.request) else "not ours"


def _offered(account: NodeAccount) -> Iterator[str]:
    """Return the resources offered by the record of a node, or by Aliyun's plugin."""
    return (name for name, each in account.resources.items() if each.offer.kind)


def _nearest(name: str, offered: Iterable[str]) -> str | None:
    return nearest(name, sorted(set(offered) - {GPU_COUNT}))  # GPU_COUNT only counts the GPUs of a node


def _verdicts(
    account: ClusterAccount, pod: Pod, losses: Mapping[str, NodeLoss], *, whole: bool
) -> Iterator[NodeVerdict | None]:
    """Yield the verdict of each node: fitting nodes, the best first, then nodes by missing units, the fewest first.

    Nodes that do not take the pod, GPUs aside, come after others. None is a step without a verdict.
    """
    names = list(account.nodes)
    also = {name: reasons for name, node in account.nodes.items() if (reasons := reasons_beside_room(pod, node))}
    verdicts = dict(account.fits_pod(pod, names))  # the account changes its own
    fitting = [name for name in names if isinstance(verdicts[name], Fit)]
    found = {name: losses.get(name) or NodeLoss(math.inf, _score(verdicts[name])) for name in fitting}
    for name in sorted(fitting, key=lambda name: (name in also, -found[name].score, found[name].loss, name)):
        loss = round(found[name].loss, 3) if name in losses else None
        fit = NodeVerdict(node=name, fits=True, score=found[name].score, loss=loss, also=also.get(name, ()))
        with suppress(PlacementError):  # where the account has changed since the last step
            yield _placed_on(account, pod, fit) if whole else fit
    misfits = {name: verdict for name in names if isinstance(verdict := verdicts[name], Misfit)}
    taking = sorted(misfits.keys() - also) or sorted(misfits)
    for name in list(misfits) if whole else deciding(account, pod.request, taking):
        if isinstance(verdict := account.fit_pod(pod, name), Misfit):
            misfits[name] = verdict
        else:  # where the account has changed since the first look
            del misfits[name]
        yield None
    order = sorted(misfits, key=lambda name: (name in also, *_missing(misfits[name]), name))
    for number, name in enumerate(order):
        node, cured = account.node_named(name), whole and number < _MOST_CURED
        judged = _misfit(account, node, pod, misfits[name], cured=cured, whole=whole)
        yield replace(judged, also=also.get(name, ()))


def _missing(misfit: Misfit) -> tuple[bool, int]:
    """Return the rank of a misfit by missing units; causes other than missing units come last."""
    return (False, misfit.missing) if isinstance(misfit, NodeMisfit) else (True, 0)


def _notes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return a note on unknown cordons if the cluster has nodes with Aliyun's plugin."""
    return (CORDONS_NOT_READ,) if any(node.offers and not node.recorded for node in nodes) else ()


def _score(verdict: Fit | Misfit) -> int:
    return verdict.score if isinstance(verdict, Fit) else 0


def _placed_on(account: ClusterAccount, pod: Pod, fit: NodeVerdict) -> NodeVerdict:
    """Return the verdict of a fitting node with the place of the pod; raises PlacementError."""
    place = account.place_pod(pod, fit.node)
    known = {gpu.name: gpu.index for each in account.account_of(fit.node).resources.values() for gpu in each.offer.gpus}
    return replace(fit, place=place.containers, indexes={share.gpu: known[share.gpu] for share in place.shares})


def _misfit(  # noqa: PLR0913 - the last two say how much is told
    account: ClusterAccount, node: Node, pod: Pod, misfit: Misfit, *, cured: bool, whole: bool
) -> NodeVerdict:
    request = pod.request
    reason = misfit.reason if whole else None
    about = NodeVerdict(node=node.name, fits=False, cause=misfit.summary, reason=reason)
    if not isinstance(misfit, NodeMisfit):
        for name, amount in request.amounts.items():
            if misfit.summary == f"the node does not offer {name}":
                reason = f"the node does not offer {name}: all {amount} units are missing"
                return replace(about, reason=reason, resource=name, missing=amount)
        return about
    by_gpu = misfit.account.by_gpu if whole else {}
    ending = None
    if cured and misfit.curable:
        there = account.account_of(node.name).pods
        resource = misfit.account.offer.resource
        costs = EvictionCosts(lambda each: (each.priority, each.request.amounts.get(resource, 0)))
        found = account.victims(pod, node.name, VictimCandidates(certain=(), others=there, costs=costs))
        ending = tuple(each.label for each in there if each in found) if found else None
    return replace(
        about,
        cause=misfit.unwanted or misfit.summary,
        resource=misfit.account.offer.resource,
        missing=misfit.missing,
        smaller=_smaller(misfit),
        fits_sum=whole and _fits_sum(account.account_of(node.name), request),
        gpus=tuple(
            _gpu(gpu, shortage, by_gpu.get(gpu.name, ()), request.wishes)
            for gpu, shortage in zip(misfit.account.offer.gpus, misfit.gpu_shortages, strict=True)
        ),
        ending=ending,
        unplaced=sum(each.units for each in misfit.account.unplaced),
    )


def _fits_sum(account: NodeAccount, request: PodRequest) -> bool:
    """Return whether a node has enough free units in sum, of each resource that gpushare serves there."""
    known = {name: each.free_in_sum for name, each in account.resources.items()}
    return all(amount <= known.get(name, amount) for name, amount in request.amounts.items())


def _smaller(misfit: NodeMisfit) -> int | None:
    """Return the largest amount of the resource that would fit now; None for no amount."""
    if not misfit.shortage.count:
        return sum(misfit.shortage.free) or None
    largest = sorted(misfit.shortage.free, reverse=True)[: misfit.shortage.count]
    return (largest[-1] * misfit.shortage.count or None) if len(largest) == misfit.shortage.count else None


def _gpu(gpu: OfferedGpu, shortage: Shortage, placed: Iterable[Placed], wishes: Wishes) -> GpuVerdict:
    return GpuVerdict(
        index=gpu.index,
        uuid=gpu.name,
        units=gpu.units,
        free=shortage.free,
        missing=shortage.missing,
        reason=shortage.reason,
        holders=tuple(f"{each.pod.label} ({each.units})" for each in placed),
        wanted=wishes.refusal(gpu.name, gpu.product) is None,
    )


def _placed(account: NodeAccount, pod: Pod, told: Told) -> dict[str, object]:
    """Return the fields on a bound pod: promise, policy, ignored annotations and granted units."""
    update = _promise(told)
    if PROMISE in told.annotations:
        update |= _policy(pod.request.policy, account.node, told)
    unread = []
    if ALLOCATION in told.annotations:
        try:
            read_allocation(told.annotations[ALLOCATION])
        except AnnotationError as error:
            unread.append(str(error))
    if LIMITS in told.annotations:
        try:
            update["limits"] = tuple(container_limits(told.annotations[LIMITS]))
        except AnnotationError as error:
            unread.append(str(error))
    if unread:
        update["ignored"] = (*pod.request.ignored, *unread)
    update["granted"] = tuple(_granted(account, pod, name) for name in pod.request.amounts if name in account.resources)
    return update


def _promise(told: Told) -> dict[str, object]:
    """Return time and node of the promise, or why the promise cannot be read."""
    if PROMISE not in told.annotations:
        return {}
    try:
        promise = read_promise(told.annotations[PROMISE])
    except AnnotationError as error:
        return {"promise_problem": str(error)}
    return {"promise_time": promise.time, "promise_node": promise.node}


def _policy(of_pod: str | None, node: Node | None, told: Told) -> dict[str, object]:
    """Return the placement policy in effect, and its origin: pod, node or scheduler extender."""
    if of_pod is not None:
        return {"policy": of_pod, "policy_source": "the pod"}
    if node is not None and node.policy is not None:
        return {"policy": node.policy, "policy_source": node.policy_source}
    default = told.extender
    return {"policy": default.policy, "policy_source": default.source, "policy_assumed": default.assumed}


def _extender_problem(request: PodRequest, standing: ExtenderStanding) -> str | None:
    """Return a sentence on the missing scheduler extender and its meaning for a waiting pod; None if not needed."""
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


def _wishes_problem(account: ClusterAccount, request: PodRequest) -> str | None:
    """Return a sentence on wishes that none of the GPUs with a requested resource meets; None where one does."""
    wishes = request.wishes
    offers = (node.offers[name] for node in account.nodes.values() for name in request.amounts if name in node.offers)
    found = {(gpu.name, gpu.product) for offer in offers for gpu in offer.gpus} if wishes != ANY_GPU else set()
    if not found or any(wishes.refusal(*gpu) is None for gpu in found):
        return None
    named = {
        HAMI_MODELS: wishes.models,
        HAMI_NOT_MODELS: wishes.not_models,
        HAMI_UUIDS: wishes.uuids,
        HAMI_NOT_UUIDS: wishes.not_uuids,
    }
    wanted = " and ".join(f"{key}: {some_of(names, _MOST_NAMED)}" for key, names in named.items() if names)
    models = some_of(sorted({product or "unknown model" for _, product in found}), _MOST_NAMED)
    return f"No GPU of this cluster is one that the annotations of the pod want ({wanted}); the models here: {models}"


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
