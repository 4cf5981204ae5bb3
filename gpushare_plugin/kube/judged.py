"""The requirements of pods of the API on nodes, in the types of `ledger`."""

from collections.abc import Collection, Iterator, Mapping

from gpushare_plugin.kube.objects import (
    Affinity,
    ApiPod,
    Container,
    ContainerStatus,
    PodSpec,
    ResourceRequirements,
)
from gpushare_plugin.ledger.constraints import NOWHERE, Constraints, Requirements, Term, requirements
from gpushare_plugin.ledger.demand import (
    ANY_ADDRESS,
    Demand,
    HostPort,
    counted_resources,
    pod_demand,
    resized,
    within_bounds,
)
from gpushare_plugin.ledger.quantity import LARGEST_AMOUNT, QuantityError, thousandths
from gpushare_plugin.ledger.request import ContainerKind

_RESIZE_PENDING, _INFEASIBLE = "PodResizePending", "Infeasible"
_FITS_NOWHERE = LARGEST_AMOUNT * 1000


def requirements_of(pod: ApiPod, held: Collection[str] = ()) -> Requirements:
    """Return the requirements of a pod on a node; a request with an unreadable quantity fits on no node.

    `held` are the extended resources to keep first if the pod requests too many resources.
    """
    spec, constraints = pod.spec, constraints_of(pod)
    names = {name for _, each in _started(spec) for name in (*each.resources.limits, *each.resources.requests)}
    demand, too_much = within_bounds(_demand(pod, counted_resources(names, held)), len(names))
    if (excess := constraints.excess) is not None:
        constraints = Constraints(affinity=NOWHERE)
    return requirements(constraints, demand, excess or too_much)


def constraints_of(pod: ApiPod) -> Constraints:
    """Return all requirements of a pod on a node except resources and ports, even if they are too many to keep."""
    spec = pod.spec
    return Constraints(tuple(sorted(spec.node_selector.items())), _terms(spec.affinity), spec.tolerations)


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
        for kind, container in _started(spec)
    ]
    of_pod = _amounts(spec.resources.requests, only)
    if of_pod and status.resources is not None:
        allocated, used = _amounts(status.allocated_resources, only), _amounts(status.resources.requests, only)
        of_pod = resized(of_pod, allocated, used, infeasible=infeasible)
    return pod_demand(containers, _amounts(spec.overhead, only), of_pod, _host_ports(spec))


def _started(spec: PodSpec) -> Iterator[tuple[ContainerKind, Container]]:
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
        for kind, container in _started(spec)
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
