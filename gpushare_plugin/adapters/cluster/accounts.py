"""Pods and Nodes of the API server as the account of the cluster takes them."""

from collections.abc import Iterator, Mapping

from gpushare_plugin.adapters.cluster.objects import Container, Node, Pod
from gpushare_plugin.model.account.annotations import claims, pod_request
from gpushare_plugin.model.account.node import GPU_COUNT, GPU_MEMORY, AccountNode, plain_node, recorded_node
from gpushare_plugin.model.account.pod import AccountPod, has_ended
from gpushare_plugin.model.account.policies import POLICIES
from gpushare_plugin.model.account.request import ContainerKind, ContainerRequest, QuantityError, units
from gpushare_plugin.model.node_record import GPUS_ANNOTATION, RecordError, decode

PLACEMENT_LABEL = "ack.node.gpu.placement"
"""Label of a Node: the placement policy of its GPUs, as ACK names it."""


def account_pod(pod: Pod) -> AccountPod:
    """Return a pod as the account takes it; what cannot be read of its annotations says nothing."""
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    request = pod_request(_containers(pod), metadata.annotations, metadata.labels)
    running = any(each.state.running for each in (*status.container_statuses, *status.init_container_statuses))
    node = spec.node_name or None
    claimed = claims(metadata.annotations, request, node)
    return AccountPod(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        request=request,
        node=node,
        owner=next((owner.uid for owner in metadata.owner_references if owner.controller), None),
        priority=spec.priority or 0,
        ended=has_ended(status.phase, running=running),
        allocation=claimed.allocation,
        promise=claimed.promise,
        indexes=claimed.indexes,
    )


def _containers(pod: Pod) -> Iterator[ContainerRequest]:
    for container in pod.spec.init_containers:
        yield _container(container, "sidecar" if container.restart_policy == "Always" else "init")
    for container in pod.spec.containers:
        yield _container(container, "app")


def _container(container: Container, kind: ContainerKind) -> ContainerRequest:
    asked = container.resources.requests | container.resources.limits
    amounts = ((name, _units(amount)) for name, amount in sorted(asked.items()) if _extended(name))
    return ContainerRequest(container.name, kind, tuple(each for each in amounts if each[1]))


def _extended(resource: str) -> bool:
    """Return whether a resource can be a device plugin's: those have a domain, which is not Kubernetes' own."""
    domain, slash, _ = resource.rpartition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _units(quantity: str) -> int:
    """Return the units of a quantity; the API server takes none that is not valid for an extended resource."""
    try:
        return units(quantity)
    except QuantityError:
        return 0


def account_node(node: Node) -> AccountNode:
    """Return a Node as the account takes it: by its record, or, without one, by the capacity of Aliyun's plugin."""
    metadata, status = node.metadata, node.status
    policy = metadata.labels.get(PLACEMENT_LABEL)
    policy = policy if policy in POLICIES else None
    allocatable = _amounts(status.allocatable)
    if (text := metadata.annotations.get(GPUS_ANNOTATION)) is not None:
        try:
            return recorded_node(metadata.name, decode(text), policy, allocatable)
        except RecordError as error:
            # Of a newer version, or broken: nothing can be placed there until it can be read.
            return AccountNode(metadata.name, {}, policy, recorded=True, ignored=(str(error),))
    capacity = _amounts(status.capacity)
    if GPU_MEMORY in capacity and GPU_COUNT in capacity:
        return plain_node(metadata.name, capacity[GPU_MEMORY], capacity[GPU_COUNT], policy)
    return AccountNode(metadata.name, {}, policy, allocatable=tuple(allocatable.items()))


def _amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    return {name: _units(quantity) for name, quantity in quantities.items() if _extended(name)}
