"""Objects of the API in their one wire form, with the fields that are kept: decoding skips everything else."""

import msgspec

from gpushare_plugin.model.account.scheduling.constraints import Requirement, Toleration
from gpushare_plugin.model.account.scheduling.taint import Taint


class Kept(msgspec.Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    """Part of an object; its fields are named as Kubernetes names them, in camel case."""


class Owner(Kept, frozen=True):
    """An object that another belongs to."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(Kept, frozen=True):
    """What every object has; `resource_version` can be compared for equality only."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[Owner, ...] = ()


class Resources(Kept, frozen=True):
    """What a container may use; the values are Kubernetes quantities."""

    limits: dict[str, str] = {}
    requests: dict[str, str] = {}


class ContainerPort(Kept, frozen=True):
    """A port of a container; `host_port` is 0 for a port that takes none of the node."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class Container(Kept, frozen=True):
    """A container; an init container whose restart policy is `Always` is a sidecar."""

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str | None = None
    ports: tuple[ContainerPort, ...] = ()


class ConfigMap(Kept, frozen=True):
    """A ConfigMap, without its binary data."""

    metadata: Metadata = Metadata()
    data: dict[str, str] = {}


class Secret(Kept, frozen=True):
    """A Secret; the API has its values in Base64."""

    metadata: Metadata = Metadata()
    data: dict[str, bytes] = {}


class SchedulingGate(Kept, frozen=True):
    """What keeps a pod from being scheduled until somebody removes it."""

    name: str = ""


class NodeSelectorTerm(Kept, frozen=True):
    """Requirements that a node has to meet together."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(Kept, frozen=True):
    """Terms of which a node has to match one."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Kept, frozen=True):
    """What a pod requires of nodes; what the pod prefers is not kept."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Kept, frozen=True):
    """What a pod requires of the node where it runs; of other pods, nothing is kept."""

    node_affinity: NodeAffinity | None = None


class PodSpec(Kept, frozen=True):
    """What a pod consists of, requests and requires; `node_name` is empty until the pod is bound."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    resources: Resources = Resources()
    overhead: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()


class Running(Kept, frozen=True):
    """Stands for a container that runs."""


class ContainerState(Kept, frozen=True):
    """What a container does: at most one of Kubernetes' three states, of which one is kept."""

    running: Running | None = None


class ContainerStatus(Kept, frozen=True):
    """What the kubelet reports of a container; `container_id` is `<runtime>://<ID>`, empty before it is created.

    `allocated_resources` are reserved on the node, `resources` those that the container runs with; None where the
    kubelet does not report them.
    """

    name: str = ""
    container_id: str = msgspec.field(default="", name="containerID")
    state: ContainerState = ContainerState()
    allocated_resources: dict[str, str] = {}
    resources: Resources | None = None


class Condition(Kept, frozen=True):
    """What is true of an object, as whoever keeps it up to date sees it; `status` is True, False or Unknown."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(Kept, frozen=True):
    """What the scheduler and the kubelet report of a pod; resources are as those of a ContainerStatus."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    nominated_node_name: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: dict[str, str] = {}
    resources: Resources | None = None
    conditions: tuple[Condition, ...] = ()


class ApiPod(Kept, frozen=True):
    """A pod as the API has it."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(Kept, frozen=True):
    """What people want of a node, and what keeps pods away from it."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class Address(Kept, frozen=True):
    """An address of a node; its type is such as `InternalIP`."""

    type: str = ""
    address: str = ""


class NodeStatus(Kept, frozen=True):
    """What a node has; the values are Kubernetes quantities."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    addresses: tuple[Address, ...] = ()
    conditions: tuple[Condition, ...] = ()


class ApiNode(Kept, frozen=True):
    """A node as the API has it."""

    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(Kept, frozen=True):
    """Who holds a Lease, and for how long after each renewal; times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Kept, frozen=True):
    """A Lease of the API group coordination.k8s.io."""

    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


class ListMetadata(Kept, frozen=True):
    """Of which version a list is, and the token to ask for its next page with, where there is one."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Kept, frozen=True):
    """A page of a list; its objects are decoded one by one."""

    metadata: ListMetadata = ListMetadata()
    items: list[msgspec.Raw] | None = None


class WatchEvent(Kept, frozen=True):
    """A line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and an object that depends on it."""

    type: str
    object: msgspec.Raw


class Identified(Kept, frozen=True):
    """Any object, with its metadata alone."""

    metadata: Metadata = Metadata()


class Status(Kept, frozen=True):
    """Why something did not work."""

    code: int | None = None
    message: str = ""
