"""The wire form of API objects, with only the fields used by gpushare: decoding skips all other fields."""

import msgspec

from gpushare_plugin.ledger.constraints import Requirement, Toleration
from gpushare_plugin.ledger.taint import Taint


class Kept(msgspec.Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    """Part of an object; in JSON, the fields have the names of Kubernetes, in camel case."""


class OwnerReference(Kept, frozen=True):
    """A reference to the owner of an object."""

    kind: str = ""
    """The kind of the owner, for example `ReplicaSet`."""
    name: str = ""
    """The name of the owner."""
    uid: str = ""
    """The UID of the owner."""
    controller: bool = False
    """Whether the owner is the controller of the object."""


class Metadata(Kept, frozen=True):
    """The metadata of every object."""

    name: str = ""
    """The name, unique in the namespace."""
    namespace: str = ""
    """The namespace, empty for an object without a namespace."""
    uid: str = ""
    """The UID, different for a later object of the same name."""
    resource_version: str = ""
    """The version, which can be compared for equality only."""
    creation_timestamp: str | None = None
    """The time of creation."""
    deletion_timestamp: str | None = None
    """The time of a requested deletion, None without a request."""
    labels: dict[str, str] = {}
    """The labels, by key."""
    annotations: dict[str, str] = {}
    """The annotations, by key."""
    owner_references: tuple[OwnerReference, ...] = ()
    """The owners of the object."""


class ClaimOfContainer(Kept, frozen=True):
    """A ResourceClaim that a container names."""

    name: str = ""
    """The name of the claim in the pod."""
    request: str = ""
    """The request of the claim, empty for all requests."""


class ResourceRequirements(Kept, frozen=True):
    """The resources of a container or a pod, as Kubernetes quantities by resource."""

    limits: dict[str, str] = {}
    """The largest amounts that may be used."""
    requests: dict[str, str] = {}
    """The amounts to reserve on the node."""
    claims: tuple[ClaimOfContainer, ...] = ()
    """The ResourceClaims of a container."""


class ContainerPort(Kept, frozen=True):
    """A port of a container."""

    name: str = ""
    """The name, empty for a port without a name."""
    container_port: int = 0
    """The port of the pod's address."""
    host_port: int = 0
    """The port of the node, 0 for a port of the container only."""
    host_ip: str = msgspec.field(default="", name="hostIP")
    """The address of the node to bind the port to, empty for all addresses."""
    protocol: str = ""
    """TCP, UDP or SCTP; empty means TCP."""


class Container(Kept, frozen=True):
    """A container of a pod."""

    name: str = ""
    """The name, unique in the pod."""
    resources: ResourceRequirements = ResourceRequirements()
    """The limits and requests."""
    restart_policy: str | None = None
    """The container's own restart policy; an init container with the policy `Always` is a sidecar."""
    ports: tuple[ContainerPort, ...] = ()
    """The ports."""


class ConfigMap(Kept, frozen=True):
    """A ConfigMap, without its binary data."""

    metadata: Metadata = Metadata()
    """The metadata of the ConfigMap."""
    data: dict[str, str] = {}
    """The text values, by key."""


class Secret(Kept, frozen=True):
    """A Secret."""

    metadata: Metadata = Metadata()
    """The metadata of the Secret."""
    data: dict[str, bytes] = {}
    """The values, by key, decoded from the Base64 of the API."""


class SchedulingGate(Kept, frozen=True):
    """A scheduling gate of a pod: the pod is not scheduled until somebody removes all of its gates."""

    name: str = ""
    """The name of the gate."""


class NodeSelectorTerm(Kept, frozen=True):
    """A set of requirements; a matching node meets all of them."""

    match_expressions: tuple[Requirement, ...] = ()
    """The requirements on labels of the node."""
    match_fields: tuple[Requirement, ...] = ()
    """The requirements on fields of the node, for example `metadata.name`."""


class NodeSelector(Kept, frozen=True):
    """Alternative terms; a matching node matches at least one term."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()
    """The terms."""


class NodeAffinity(Kept, frozen=True):
    """The requirements of a pod on nodes, without its preferences."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    """The selector of possible nodes, None without a requirement."""


class Affinity(Kept, frozen=True):
    """The affinity of a pod, without affinity to pods."""

    node_affinity: NodeAffinity | None = None
    """The affinity to nodes."""


class ClaimOfPod(Kept, frozen=True):
    """A ResourceClaim of a pod."""

    name: str = ""
    """The name of the claim in the pod."""
    resource_claim_name: str | None = None
    """The name of the ResourceClaim; None for a claim from a template, also if no claim is made yet, or needed."""


class PodSpec(Kept, frozen=True):
    """The containers, requests and requirements of a pod."""

    node_name: str = ""
    """The node of the pod, empty until the pod is bound."""
    scheduler_name: str = ""
    """The name of the scheduler responsible for the pod."""
    priority: int | None = None
    """The priority, None if no priority is set."""
    containers: tuple[Container, ...] = ()
    """The app containers."""
    init_containers: tuple[Container, ...] = ()
    """The init containers and sidecars."""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    """The gates that hold the pod back from scheduling."""
    resources: ResourceRequirements = ResourceRequirements()
    """The resources of the pod as a whole."""
    overhead: dict[str, str] = {}
    """The resources of the pod's runtime, as quantities by resource."""
    node_selector: dict[str, str] = {}
    """The required labels of the node."""
    affinity: Affinity | None = None
    """The affinity of the pod."""
    tolerations: tuple[Toleration, ...] = ()
    """The tolerated taints."""
    resource_claims: tuple[ClaimOfPod, ...] = ()
    """The ResourceClaims that containers can name."""


class Running(Kept, frozen=True):
    """The state of a running container."""


class ContainerState(Kept, frozen=True):
    """The state of a container; gpushare keeps only one of Kubernetes' three states."""

    running: Running | None = None
    """Present while the container runs."""


class ContainerStatus(Kept, frozen=True):
    """The kubelet's report of a container."""

    name: str = ""
    """The name of the container."""
    container_id: str = msgspec.field(default="", name="containerID")
    """The ID of the container as `<runtime>://<ID>`, empty before its creation."""
    state: ContainerState = ContainerState()
    """The current state."""
    allocated_resources: dict[str, str] = {}
    """The quantities reserved on the node, by resource."""
    resources: ResourceRequirements | None = None
    """The resources that the container runs with, None if the kubelet does not report them."""


class Condition(Kept, frozen=True):
    """A condition of an object, kept up to date by the program responsible for the condition."""

    type: str = ""
    """The name of the condition, for example `Ready`."""
    status: str = ""
    """True, False or Unknown."""
    reason: str = ""
    """The reason for the status, in one word."""
    message: str = ""
    """The reason for the status, for people."""


class ExtendedResourceRequest(Kept, frozen=True):
    """The request of a ResourceClaim that is for an extended resource of a container."""

    container_name: str = ""
    """The name of the container."""
    request_name: str = ""
    """The name of the request."""


class ExtendedResourceClaim(Kept, frozen=True):
    """The ResourceClaim that a scheduler made for the extended resources of a pod."""

    resource_claim_name: str = ""
    """The name of the ResourceClaim."""
    request_mappings: tuple[ExtendedResourceRequest, ...] = ()
    """The requests of the containers."""


class PodStatus(Kept, frozen=True):
    """The reports of the scheduler and the kubelet on a pod."""

    phase: str = ""
    """Pending, Running, Succeeded, Failed or Unknown."""
    reason: str = ""
    """The reason for the phase, in one word."""
    message: str = ""
    """The reason for the phase, for people."""
    start_time: str | None = None
    """The time at which the kubelet accepted the pod, None before."""
    pod_ip: str = msgspec.field(default="", name="podIP")
    """The IP address of the pod, empty before the pod has an address."""
    nominated_node_name: str = ""
    """The node on which the scheduler preempts pods for this pod, empty without preemption."""
    container_statuses: tuple[ContainerStatus, ...] = ()
    """The reports on app containers."""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    """The reports on init containers and sidecars."""
    allocated_resources: dict[str, str] = {}
    """The quantities reserved on the node for the pod as a whole, by resource."""
    resources: ResourceRequirements | None = None
    """The resources that the pod as a whole runs with, None if the kubelet does not report them."""
    conditions: tuple[Condition, ...] = ()
    """The conditions of the pod."""
    resource_claim_statuses: tuple[ClaimOfPod, ...] = ()
    """The ResourceClaims that were made from templates."""
    extended_resource_claim_status: ExtendedResourceClaim | None = None
    """The ResourceClaim for extended resources, None without one."""


class ApiPod(Kept, frozen=True):
    """A Pod of the API."""

    metadata: Metadata = Metadata()
    """The metadata of the Pod."""
    spec: PodSpec = PodSpec()
    """The desired state."""
    status: PodStatus = PodStatus()
    """The reported state."""


class NodeSpec(Kept, frozen=True):
    """The settings of a node that decide on new pods."""

    unschedulable: bool = False
    """Whether the node is cordoned."""
    taints: tuple[Taint, ...] = ()
    """The taints, which keep away pods without a matching toleration."""


class Address(Kept, frozen=True):
    """An address of a node."""

    type: str = ""
    """The type of the address, for example `InternalIP`."""
    address: str = ""
    """The address."""


class NodeStatus(Kept, frozen=True):
    """The kubelet's report of a node."""

    capacity: dict[str, str] = {}
    """All resources of the node, as Kubernetes quantities."""
    allocatable: dict[str, str] = {}
    """The resources available to pods, as Kubernetes quantities."""
    addresses: tuple[Address, ...] = ()
    """The addresses of the node."""
    conditions: tuple[Condition, ...] = ()
    """The conditions of the node."""


class ApiNode(Kept, frozen=True):
    """A Node of the API."""

    metadata: Metadata = Metadata()
    """The metadata of the Node."""
    spec: NodeSpec = NodeSpec()
    """The desired state."""
    status: NodeStatus = NodeStatus()
    """The reported state."""


class LeaseSpec(Kept, frozen=True):
    """The holder of a Lease, and the time for which the holder has the Lease."""

    holder_identity: str | None = None
    """The name of the holder, empty or None for a free Lease."""
    lease_duration_seconds: int | None = None
    """The seconds for which a renewal counts."""
    renew_time: str | None = None
    """The time of the last renewal, RFC 3339 with microseconds."""
    lease_transitions: int | None = None
    """The number of changes of the holder."""


class Lease(Kept, frozen=True):
    """A Lease of the API group coordination.k8s.io."""

    metadata: Metadata = Metadata()
    """The metadata of the Lease."""
    spec: LeaseSpec = LeaseSpec()
    """The holder and the times."""


class ListMetadata(Kept, frozen=True):
    """The metadata of a page of a list."""

    resource_version: str = ""
    """The version of the list, to start a watch from."""
    continue_: str = msgspec.field(default="", name="continue")
    """The token to request the next page, empty on the last page."""


class Page(Kept, frozen=True):
    """A page of a list, with undecoded objects."""

    metadata: ListMetadata = ListMetadata()
    """The version of the list and the token of the next page."""
    items: list[msgspec.Raw] | None = None
    """The objects, which are decoded separately."""


class WatchEvent(Kept, frozen=True):
    """A line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""
    object: msgspec.Raw
    """The changed object; with BOOKMARK an object with only its version, with ERROR a Status."""


class Identified(Kept, frozen=True):
    """Any object, reduced to its metadata."""

    metadata: Metadata = Metadata()
    """The metadata of the object."""


class Status(Kept, frozen=True):
    """A Status of the API: the reason for a failure."""

    code: int | None = None
    """The HTTP status."""
    message: str = ""
    """The reason, for people."""
