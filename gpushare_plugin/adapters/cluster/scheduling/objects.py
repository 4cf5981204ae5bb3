"""Pods and nodes with the fields that decide where a pod can run; only those who judge that decode so much of them."""

import msgspec

from gpushare_plugin.adapters.cluster.objects import (
    Condition,
    Container,
    ContainerStatus,
    Kept,
    Node,
    NodeSpec,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)
from gpushare_plugin.model.account.scheduling.constraints import Requirement, Toleration
from gpushare_plugin.model.account.scheduling.node import Taint


class ContainerPort(Kept, frozen=True):
    """A port of a container; `host_port` is 0 where it takes none of its node."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class JudgedContainer(Container, frozen=True):
    """A container with its ports."""

    ports: tuple[ContainerPort, ...] = ()


class NodeSelectorTerm(Kept, frozen=True):
    """Requirements that a node has to meet together."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(Kept, frozen=True):
    """Terms of which a node has to match one."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Kept, frozen=True):
    """What a pod requires of nodes; what it prefers is not kept."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Kept, frozen=True):
    """What a pod requires of where it runs; of other pods, nothing is kept."""

    node_affinity: NodeAffinity | None = None


class JudgedPodSpec(PodSpec, frozen=True):
    """What a pod requests and requires."""

    containers: tuple[JudgedContainer, ...] = ()
    init_containers: tuple[JudgedContainer, ...] = ()
    resources: Resources = Resources()
    overhead: dict[str, str] = msgspec.field(default_factory=dict)
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()


class JudgedContainerStatus(ContainerStatus, frozen=True):
    """What the node has reserved for a container, and what it runs with; None where the kubelet does not report it."""

    allocated_resources: dict[str, str] = msgspec.field(default_factory=dict)
    resources: Resources | None = None


class JudgedPodStatus(PodStatus, frozen=True):
    """The same for a pod, and whether it is being resized."""

    container_statuses: tuple[JudgedContainerStatus, ...] = ()
    init_container_statuses: tuple[JudgedContainerStatus, ...] = ()
    allocated_resources: dict[str, str] = msgspec.field(default_factory=dict)
    resources: Resources | None = None
    conditions: tuple[Condition, ...] = ()


class JudgedPod(Pod, frozen=True):
    """A pod whose place is judged: everything of a `Pod`, and what it requests and requires."""

    spec: JudgedPodSpec = JudgedPodSpec()
    status: JudgedPodStatus = JudgedPodStatus()


class JudgedNodeSpec(NodeSpec, frozen=True):
    """What keeps pods away from a node."""

    taints: tuple[Taint, ...] = ()


class JudgedNode(Node, frozen=True):
    """A node that is judged: everything of a `Node`, and its taints."""

    spec: JudgedNodeSpec = JudgedNodeSpec()
