"""Pods of the API: the only conversion to the pods that programs work with, and what they need of nodes."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from gpushare_plugin.base.structs import kept_while_used
from gpushare_plugin.kube.objects import (
    Affinity,
    ApiPod,
    Container,
    ContainerStatus,
    Metadata,
    OwnerReference,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from gpushare_plugin.ledger.annotations import annotated_shares, held_resources, pod_request
from gpushare_plugin.ledger.constraints import NOT_READ, NOWHERE, Constraints, Needs, Term, shared_needs
from gpushare_plugin.ledger.demand import (
    ANY_ADDRESS,
    CPU,
    MEMORY,
    Demand,
    HostPort,
    counted_resources,
    pod_demand,
    resized,
    within_bounds,
)
from gpushare_plugin.ledger.node import is_extended
from gpushare_plugin.ledger.pod import (
    FINAL_PHASES,
    MOST_LABELS,
    NO_LABELS,
    UNKNOWN,
    ContainerClaim,
    Labels,
    Pod,
    has_ended,
    shared_labels,
)
from gpushare_plugin.ledger.product_label import PRODUCT
from gpushare_plugin.ledger.quantity import LARGEST_AMOUNT, QuantityError, thousandths, units
from gpushare_plugin.ledger.request import (
    MOST_CONTAINERS,
    MOST_READ,
    ContainerKind,
    ContainerRequest,
    PodRequest,
    kept_resources,
    too_large,
)

_LONGEST_UID = 64
"""Longest accepted UID of an owner, in characters: Kubernetes' UIDs have 36, and anybody may write a longer UID."""
_LONGEST_CONTAINER = 63
"""Longest container name, in characters, as in an API server; a client of the extender can send longer names."""
_LONGEST_TIME = 64
"""Number of characters read of a time; every valid time is shorter."""

MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a mirror pod, with the UID of the static pod.

Source: Kubernetes, pkg/kubelet/config/common.go (`kubernetes.io/config.hash` is the UID of a static pod) and
pkg/kubelet/pod/mirror_client.go (the mirror pod has the same value in this annotation).
"""

_MOST_GATES = 8
"""Largest number of scheduling gates kept of a pod: a single gate is enough to hold the pod back."""


def pod_of(found: ApiPod, *, evictable: bool = False, measured: bool = False) -> Pod:
    """Return a pod without its needs; no content of a pod is an error.

    Only an `evictable` pod has its start and its labels, because labels change while everything else of a pod stays. Of
    its needs, a `measured` pod has the CPU and the memory that it takes of its node, and the models that it accepts.
    """
    needs = shared_needs(_constraints_on_models(found), _cpu_and_memory(found)) if measured else NOT_READ
    return _pod(found, request_of(found), needs, evictable=evictable)


def judged_pod(found: ApiPod) -> Pod:
    """Return a pod with its needs, for programs that judge nodes.

    A request with an unreadable quantity fits on no node.
    """
    request = request_of(found)
    return _pod(found, request, needs_of(found, request.amounts.keys()), evictable=False)


def _pod(found: ApiPod, request: PodRequest, needs: Needs, *, evictable: bool) -> Pod:
    metadata, spec, status = found.metadata, found.spec, found.status
    node = spec.node_name or None
    annotated = annotated_shares(metadata.annotations, request, node)
    return Pod(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        request=request,
        node=node,
        owner=_controller(metadata.owner_references),
        priority=spec.priority or 0,
        created=_time((metadata.creation_timestamp or "")[:_LONGEST_TIME]),
        started=_started((status.start_time or "")[:_LONGEST_TIME]) if evictable else math.inf,
        labels=_labels(metadata) if evictable else NO_LABELS,
        phase_final=status.phase in FINAL_PHASES,
        ended=has_ended(status.phase, lambda: _runs(status)),
        ending=metadata.deletion_timestamp is not None,
        nominated=status.nominated_node_name or None,
        gates=tuple([gate.name for gate in spec.scheduling_gates[:_MOST_GATES]]),
        allocation=annotated.allocation,
        promise=annotated.promise,
        indexes=annotated.indexes,
        needs=needs,
    )


def claim_names(found: ApiPod) -> Mapping[str, str | None]:
    """Return the names of the ResourceClaims of a pod by their names in the pod; None for a claim that is not made."""
    made = {each.name: each.resource_claim_name for each in found.status.resource_claim_statuses}
    return {each.name: each.resource_claim_name or made.get(each.name) for each in found.spec.resource_claims}


def claims_of(found: ApiPod) -> Iterator[ContainerClaim]:
    """Yield the ResourceClaims of the containers of a pod, as the kubelet finds them.

    Source: kubernetes 1.36, pkg/kubelet/cm/dra/manager.go, `GetResources`.
    """
    names, spec = claim_names(found), found.spec
    for container in (*spec.init_containers, *spec.containers):
        for each in container.resources.claims:
            if claim := names.get(each.name):
                yield ContainerClaim(container.name, claim, each.request)
    if (extended := found.status.extended_resource_claim_status) is not None:
        for request in extended.request_mappings:
            yield ContainerClaim(request.container_name, extended.resource_claim_name, request.request_name)


@lru_cache(maxsize=1024)
def _time(text: str) -> datetime:
    """Return the time of a text, the same object for replicas created at the same time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return UNKNOWN
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _labels(metadata: Metadata) -> Labels:
    return shared_labels(tuple(sorted(metadata.labels.items())[:MOST_LABELS]))


@lru_cache(maxsize=1024)
def _started(text: str) -> float:
    """Return the time of a text in seconds since 1970, infinite for an unreadable or empty text."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return math.inf


# Plain loops here and below: a large cluster has tens of thousands of pods.
def _controller(owners: Iterable[OwnerReference]) -> str | None:
    """Return the UID of the controller among the owners of a pod, None for no controller or an overlong UID."""
    for owner in owners:
        if owner.controller:
            return owner.uid if len(owner.uid) <= _LONGEST_UID else None
    return None


def controller_kind(found: ApiPod) -> str:
    """Return the kind of the controller of a pod, such as `ReplicaSet`; `Node` for a static pod, empty without one."""
    if MIRROR in found.metadata.annotations:
        return "Node"
    return next((owner.kind for owner in found.metadata.owner_references if owner.controller), "")


def _runs(status: PodStatus) -> bool:
    """Return whether a status shows a running container."""
    for statuses in (status.container_statuses, status.init_container_statuses):
        for each in statuses:
            if each.state.running is not None:
                return True
    return False


def asks(pod: ApiPod) -> bool:
    """Return whether a pod requests any extended resource, even in an unreadable quantity."""
    for containers in (pod.spec.containers, pod.spec.init_containers):
        for container in containers:
            resources = container.resources
            for name in resources.limits:
                if is_extended(name):
                    return True
            for name in resources.requests:
                if is_extended(name):
                    return True
    return False


def request_of(pod: ApiPod) -> PodRequest:
    """Return the request of a pod; an unreadable quantity is noted as the problem of the request."""
    metadata, problem = pod.metadata, None
    asked = list(_asked(pod))
    if len(asked) > MOST_CONTAINERS or sum([len(each.quantities) for each in asked]) > MOST_READ:
        asked, problem = _within_bounds(asked, metadata.annotations)
    try:
        containers = tuple([_container_request(name, kind, tuple(found.items())) for name, kind, found in asked])
    except QuantityError as error:
        return replace(pod_request((), metadata.annotations, metadata.labels), problem=str(error))
    return pod_request(containers, metadata.annotations, metadata.labels, problem)


class _Asked(NamedTuple):
    """The request of a container, with quantities as text."""

    name: str
    """The name of the container, shortened to the longest valid name."""
    kind: ContainerKind
    """Whether the container is an app container, an init container or a sidecar."""
    quantities: Mapping[str, str]
    """The Kubernetes quantities, by resource."""


def _asked(pod: ApiPod) -> Iterator[_Asked]:
    """Yield the requests of containers in the order in which the kubelet starts the containers.

    A container gives a limit or a request of an extended resource, or both with the same quantity.
    """
    for each in pod.spec.init_containers:
        kind: ContainerKind = "sidecar" if each.restart_policy == "Always" else "init"
        yield _Asked(each.name[:_LONGEST_CONTAINER], kind, each.resources.requests | each.resources.limits)
    for each in pod.spec.containers:
        yield _Asked(each.name[:_LONGEST_CONTAINER], "app", each.resources.requests | each.resources.limits)


def _within_bounds(asked: Sequence[_Asked], annotations: Mapping[str, str]) -> tuple[list[_Asked], str | None]:
    """Return the requests for the kept resources of a far too large pod, and the exceeded bounds in words.

    Removing the other resources before any quantity is read bounds the work; the words are None within the bounds.
    """
    names = {name for each in asked for name in each.quantities if is_extended(name)}
    amounts = sum([len(names.intersection(each.quantities)) for each in asked])
    kept = kept_resources(names, held_resources(annotations))
    found = [
        _Asked(name, kind, {resource: quantities[resource] for resource in kept.intersection(quantities)})
        for name, kind, quantities in asked
        if not kept.isdisjoint(quantities)
    ]
    return found, too_large(len(asked), len(names), amounts)


@kept_while_used
def _container_request(name: str, kind: ContainerKind, asked: tuple[tuple[str, str], ...]) -> ContainerRequest:
    """Return the request of a container, one object for all replicas of a pod; raises QuantityError."""
    amounts = [(resource, amount) for resource, text in asked if is_extended(resource) and (amount := units(text))]
    return ContainerRequest(name, kind, tuple(sorted(amounts)))


_RESIZE_PENDING, _INFEASIBLE = "PodResizePending", "Infeasible"
_FITS_NOWHERE = LARGEST_AMOUNT * 1000
_MEASURED = frozenset({CPU, MEMORY})


def needs_of(pod: ApiPod, held: Collection[str] = ()) -> Needs:
    """Return what a pod needs of a node; a request with an unreadable quantity fits on no node.

    `held` are the extended resources to keep first if the pod requests too many resources.
    """
    spec, constraints = pod.spec, constraints_of(pod)
    names = {name for _, each in _starting(spec) for name in (*each.resources.limits, *each.resources.requests)}
    demand, too_much = within_bounds(_demand(pod, counted_resources(names, held)), len(names))
    if (excess := constraints.excess) is not None:
        constraints = Constraints(affinity=NOWHERE)
    return shared_needs(constraints, demand, excess or too_much)


def constraints_of(pod: ApiPod) -> Constraints:
    """Return all that a pod needs of a node except resources and ports, even if they are too many to keep."""
    spec = pod.spec
    return Constraints(tuple(sorted(spec.node_selector.items())), _terms(spec.affinity), spec.tolerations)


def _constraints_on_models(pod: ApiPod) -> Constraints:
    """Return the constraints on the label with the model of GPUs; none of a pod with too many constraints to keep."""
    found = constraints_of(pod)
    return Constraints() if found.excess is not None else found.about(PRODUCT)


def _terms(affinity: Affinity | None) -> tuple[Term, ...] | None:
    if affinity is None or affinity.node_affinity is None or affinity.node_affinity.required is None:
        return None
    terms = affinity.node_affinity.required.node_selector_terms
    return tuple(Term(term.match_expressions, term.match_fields) for term in terms)


def _demand(pod: ApiPod, only: frozenset[str] | None) -> Demand:
    """Return the demand of a pod; during a resize in place, the demand in kube-scheduler's count.

    `only` names the resources to read of a pod with too many resources, None all resources.
    """
    spec, status = pod.spec, pod.status
    infeasible = any(each.type == _RESIZE_PENDING and each.reason == _INFEASIBLE for each in status.conditions)
    reported = {each.name: each for each in (*status.container_statuses, *status.init_container_statuses)}
    containers = [
        (kind, _taken(container, reported.get(container.name) if kind != "init" else None, only, infeasible=infeasible))
        for kind, container in _starting(spec)
    ]
    of_pod = _amounts(spec.resources.requests, only)
    if of_pod and status.resources is not None:
        allocated, used = _amounts(status.allocated_resources, only), _amounts(status.resources.requests, only)
        of_pod = resized(of_pod, allocated, used, infeasible=infeasible)
    return pod_demand(containers, _amounts(spec.overhead, only), of_pod, _host_ports(spec))


def _cpu_and_memory(pod: ApiPod) -> Demand:
    """Return the CPU and memory that a pod takes of its node; see `_demand`."""
    taken = _demand(pod, _MEASURED).resources
    return Demand({name: taken[name] for name in sorted(_MEASURED.intersection(taken))})


def _starting(spec: PodSpec) -> Iterator[tuple[ContainerKind, Container]]:
    """Yield the containers of a pod, with their kinds, in the order in which the kubelet starts the containers."""
    for container in spec.init_containers:
        yield "sidecar" if container.restart_policy == "Always" else "init", container
    for container in spec.containers:
        yield "app", container


def _taken(
    container: Container,
    status: ContainerStatus | None,
    only: frozenset[str] | None,
    *,
    infeasible: bool,
) -> dict[str, int]:
    """Return the amounts of a container: its requests, or the limits without a request, as in the API server."""
    resources: ResourceRequirements = container.resources
    if only is not None and only.isdisjoint(resources.limits) and only.isdisjoint(resources.requests):
        return {}
    asked = _amounts(resources.limits | resources.requests, only)
    if status is None or status.resources is None:
        return asked
    allocated, used = _amounts(status.allocated_resources, only), _amounts(status.resources.requests, only)
    return resized(asked, allocated, used, infeasible=infeasible)


def _host_ports(spec: PodSpec) -> list[HostPort]:
    """Return the node ports of all containers except init containers, which end before the pod runs."""
    return [
        HostPort(port.host_port, port.protocol or "TCP", port.host_ip or ANY_ADDRESS)
        for kind, container in _starting(spec)
        if kind != "init"
        for port in container.ports
        if port.host_port > 0
    ]


def _amounts(quantities: Mapping[str, str], only: frozenset[str] | None = None) -> dict[str, int]:
    """Return quantities in thousandths by resource: of the resources in `only`, or of all resources for None.

    An unreadable quantity, which no API server takes, becomes an amount that fits on no node.
    """
    return {name: _amount(quantity) for name, quantity in quantities.items() if only is None or name in only}


def _amount(quantity: str) -> int:
    try:
        return thousandths(quantity)
    except QuantityError:
        return _FITS_NOWHERE
