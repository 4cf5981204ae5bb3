"""The JSON of kube-scheduler's extender protocol, version 1.

Keys are the names of the Go fields, because `k8s.io/kube-scheduler/extender/v1` has no JSON tags. Only the used parts
of pods and nodes are decoded.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Annotated, TypeVar

import msgspec

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.text import in_words
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.objects import ApiPod, Identified

T = TypeVar("T")


MOST_NODES = 15_000
"""The most nodes in a request: three times the 5,000 nodes of the largest supported cluster."""
LARGEST_POD = 3 * 2**20
"""The most bytes of the pod in a request: an API server accepts no larger pod."""
MOST_VALUES_OF_A_POD = 2**15
"""The most JSON values in the pod of a request, counted as commas: judging a container takes some 20 µs."""


Name = Annotated[str, msgspec.Meta(max_length=253)]
"""A name or a UID; Kubernetes limits names to 253 characters."""


class ProtocolError(GpushareError):
    """A request differs from the requests of kube-scheduler."""


class _ProtocolPart(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """A part of the protocol."""


NodeObject = msgspec.Raw
"""A whole Node object, undecoded."""


class NodeObjects(msgspec.Struct, frozen=True):
    """Whole Node objects, returned unchanged."""

    items: list[NodeObject] | None = None
    """The Node objects; None counts as empty."""


class _AboutAPod(_ProtocolPart, frozen=True, dict=True):
    """A request about a pod without a node."""

    pod_object: msgspec.Raw = msgspec.field(name="Pod")
    """The whole pod, undecoded."""

    @cached_property
    def pod(self) -> ApiPod:
        """The decoded pod; raises ProtocolError."""
        return decode(bytes(self.pod_object), ApiPod)

    def check(self, *nodes: Collection[object] | None) -> None:
        """Raise ValueError for a pod, or a collection of nodes, above the limits of this module."""
        if (most := max(len(each or ()) for each in nodes)) > MOST_NODES:
            raise ValueError(f"it has {most:,} nodes, and at most {MOST_NODES:,} are taken")
        if (size := memoryview(self.pod_object).nbytes) > LARGEST_POD:
            raise ValueError(f"its pod has {size:,} bytes, and at most {LARGEST_POD:,} are taken")
        if (values := bytes(self.pod_object).count(b",")) > MOST_VALUES_OF_A_POD:
            raise ValueError(f"its pod has some {values:,} values, and at most {MOST_VALUES_OF_A_POD:,} are taken")


class Arguments(_AboutAPod, frozen=True):
    """The request of `filter` and `prioritize`."""

    nodes: NodeObjects | None = None
    """The candidate nodes as objects, unless the extender is `nodeCacheCapable`."""
    node_names: list[Name] | None = None
    """The names of the candidate nodes, if the extender is `nodeCacheCapable`."""

    def __post_init__(self) -> None:
        """Refuse a request above the limits; `decode` raises the ValueError as a ProtocolError."""
        self.check(self.node_names, self.nodes.items if self.nodes else None)


class FilterResult(_ProtocolPart, frozen=True, omit_defaults=True):
    """The answer to `filter`."""

    nodes: NodeObjects | None = None
    """The fitting nodes, for a request with objects."""
    node_names: list[str] | None = None
    """The names of the fitting nodes, for a request with names."""
    failed_nodes: Mapping[str, str] = {}
    """The reason by node, for nodes where preemption could help."""
    failed_and_unresolvable_nodes: Mapping[str, str] = {}
    """The reason by node, for nodes where preemption cannot help."""
    error: str = ""
    """The reason for an answer without a verdict; kube-scheduler shows the text with the pod."""


class HostPriority(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """The score of a node; an answer has thousands of scores."""

    host: str
    """The name of the node."""
    score: int
    """The score, from 0 to 10."""


class BindingArguments(_ProtocolPart, frozen=True):
    """The request of `bind`."""

    pod_name: Name
    """The name of the pod to bind."""
    pod_namespace: Name
    """The namespace of the pod."""
    pod_uid: Name = msgspec.field(name="PodUID")
    """The UID of the pod."""
    node: Name
    """The name of the node to bind the pod to."""

    @property
    def pod(self) -> ObjectIdentity:
        """The identity of the pod."""
        return ObjectIdentity(self.pod_namespace, self.pod_name, self.pod_uid)


class BindingResult(_ProtocolPart, frozen=True):
    """The answer to `bind`."""

    error: str = ""
    """The reason why the pod was not bound; empty for a bound pod."""


class MetaPod(_ProtocolPart, frozen=True):
    """A pod by its UID."""

    uid: Name = msgspec.field(name="UID")
    """The UID."""


class MetaVictims(_ProtocolPart, frozen=True):
    """Pods of a node to evict, by UID."""

    pods: Sequence[MetaPod] | None = None
    """The pods to evict; None counts as empty."""
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)
    """The number of evictions that violate a disruption budget."""


class Victims(_ProtocolPart, frozen=True):
    """Pods of a node to evict, as whole pods."""

    pods: Sequence[Identified] | None = None
    """The pods to evict; None counts as empty."""
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)
    """The number of evictions that violate a disruption budget."""


class PreemptionArguments(_AboutAPod, frozen=True):
    """The request of `preempt`: the victims found by kube-scheduler."""

    node_name_to_victims: Mapping[Name, Victims] | None = None
    """The victims by node as whole pods, unless the extender is `nodeCacheCapable`."""
    node_name_to_meta_victims: Mapping[Name, MetaVictims] | None = None
    """The victims by node as UIDs, if the extender is `nodeCacheCapable`."""

    def __post_init__(self) -> None:
        """Refuse a request above the limits; `decode` raises the ValueError as a ProtocolError."""
        self.check(self.node_name_to_victims, self.node_name_to_meta_victims)

    @property
    def victims(self) -> dict[str, MetaVictims]:
        """The victims by node as UIDs, from both fields."""
        found = dict(self.node_name_to_meta_victims or {})
        for node, victims in (self.node_name_to_victims or {}).items():
            pods = tuple(MetaPod(uid=pod.metadata.uid) for pod in victims.pods or ())
            found.setdefault(node, MetaVictims(pods=pods, num_pdb_violations=victims.num_pdb_violations))
        return found


class PreemptionResult(_ProtocolPart, frozen=True):
    """The answer to `preempt`."""

    node_name_to_meta_victims: Mapping[str, MetaVictims]
    """The victims by node, for the nodes where the pod fits after the evictions."""


def decode(body: bytes | bytearray, kind: type[T]) -> T:
    """Return JSON decoded as `kind`; raises ProtocolError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the request is not that of kube-scheduler's extender protocol v1: {error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the request is not JSON that can be read: {in_words(error)}") from error


def encode(answer: object) -> bytes:
    """Return an answer as JSON."""
    return msgspec.json.encode(answer)


def node_names(nodes: NodeObjects | None) -> list[tuple[str, NodeObject]]:
    """Return the name and the object of each Node; raises ProtocolError."""
    items = nodes.items if nodes is not None else None
    return [(decode(bytes(item), Identified).metadata.name, item) for item in items or ()]
