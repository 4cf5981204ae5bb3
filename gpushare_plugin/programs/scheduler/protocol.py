"""The JSON of kube-scheduler's extender protocol, version 1.

Keys are the names of the Go fields, for `k8s.io/kube-scheduler/extender/v1` has no others. Only what is used of pods
and nodes is decoded.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Annotated, TypeVar

import msgspec

from gpushare_plugin.adapters.cluster.identity import ObjectIdentity
from gpushare_plugin.adapters.cluster.objects import ApiPod, Identified
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.text import in_words

T = TypeVar("T")


MOST_NODES = 15_000
"""Nodes in one request: three times as many as a cluster of Kubernetes has at most."""
LARGEST_POD = 3 * 2**20
"""Bytes of the pod of a request: an API server takes none that is larger."""
MOST_VALUES_OF_A_POD = 2**15
"""Values of JSON in the pod of a request, counted as commas: to judge a container takes some 20 µs."""


Name = Annotated[str, msgspec.Meta(max_length=253)]
"""A name or a UID; Kubernetes has no longer ones."""


class ProtocolError(GpushareError):
    """A request is not what kube-scheduler sends."""


class _Message(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """A part of the protocol."""


NodeObject = msgspec.Raw
"""A whole Node object, undecoded."""


class NodeObjects(msgspec.Struct, frozen=True):
    """Whole Node objects, which are given back as they came."""

    items: list[NodeObject] | None = None


class _AboutAPod(_Message, frozen=True, dict=True):
    """A request about a pod that has no node yet."""

    pod_object: msgspec.Raw = msgspec.field(name="Pod")

    @cached_property
    def pod(self) -> ApiPod:
        """The pod; raises ProtocolError."""
        return decode(bytes(self.pod_object), ApiPod)

    def check(self, *nodes: Collection[object] | None) -> None:
        """Raise ValueError where the pod, or one of these collections of nodes, is larger than is taken."""
        if (most := max(len(each or ()) for each in nodes)) > MOST_NODES:
            raise ValueError(f"it has {most:,} nodes, and at most {MOST_NODES:,} are taken")
        if (size := memoryview(self.pod_object).nbytes) > LARGEST_POD:
            raise ValueError(f"its pod has {size:,} bytes, and at most {LARGEST_POD:,} are taken")
        if (values := bytes(self.pod_object).count(b",")) > MOST_VALUES_OF_A_POD:
            raise ValueError(f"its pod has some {values:,} values, and at most {MOST_VALUES_OF_A_POD:,} are taken")


class Arguments(_AboutAPod, frozen=True):
    """What `filter` and `prioritize` are asked; names where the extender is `nodeCacheCapable`, or else objects."""

    nodes: NodeObjects | None = None
    node_names: list[Name] | None = None

    def __post_init__(self) -> None:
        """Refuse what is too much; the ValueError becomes a ProtocolError."""
        self.check(self.node_names, self.nodes.items if self.nodes else None)


class FilterResult(_Message, frozen=True, omit_defaults=True):
    """The nodes that fit, as names or objects, and why the others do not: curable by preemption or not."""

    nodes: NodeObjects | None = None
    node_names: list[str] | None = None
    failed_nodes: Mapping[str, str] = {}
    failed_and_unresolvable_nodes: Mapping[str, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """The score of a node, 0 to 10; an answer has thousands of these."""

    host: str
    score: int


class BindingArguments(_Message, frozen=True):
    """The pod to bind, and the node."""

    pod_name: Name
    pod_namespace: Name
    pod_uid: Name = msgspec.field(name="PodUID")
    node: Name

    @property
    def pod(self) -> ObjectIdentity:
        """The pod."""
        return ObjectIdentity(self.pod_namespace, self.pod_name, self.pod_uid)


class BindingResult(_Message, frozen=True):
    """Why a pod was not bound; empty where it was."""

    error: str = ""


class MetaPod(_Message, frozen=True):
    """A pod by its UID."""

    uid: Name = msgspec.field(name="UID")


class MetaVictims(_Message, frozen=True):
    """Pods of a node to evict, and how many disruption budgets that violates."""

    pods: Sequence[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(_Message, frozen=True):
    """As `MetaVictims`, with whole pods."""

    pods: Sequence[Identified] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArguments(_AboutAPod, frozen=True):
    """The victims that kube-scheduler found, by node; by UID where the extender is `nodeCacheCapable`."""

    node_name_to_victims: Mapping[Name, Victims] | None = None
    node_name_to_meta_victims: Mapping[Name, MetaVictims] | None = None

    def __post_init__(self) -> None:
        """Refuse what is too much; the ValueError becomes a ProtocolError."""
        self.check(self.node_name_to_victims, self.node_name_to_meta_victims)

    @property
    def victims(self) -> dict[str, MetaVictims]:
        """The victims by node, as UIDs."""
        found = dict(self.node_name_to_meta_victims or {})
        for node, victims in (self.node_name_to_victims or {}).items():
            pods = tuple(MetaPod(uid=pod.metadata.uid) for pod in victims.pods or ())
            found.setdefault(node, MetaVictims(pods=pods, num_pdb_violations=victims.num_pdb_violations))
        return found


class PreemptionResult(_Message, frozen=True):
    """The victims of the nodes where evicting them makes the pod fit."""

    node_name_to_meta_victims: Mapping[str, MetaVictims]


def decode(body: bytes | bytearray, kind: type[T]) -> T:
    """Return a request; raises ProtocolError."""
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
    """Return the objects with their names; raises ProtocolError."""
    items = nodes.items if nodes is not None else None
    return [(decode(bytes(item), Identified).metadata.name, item) for item in items or ()]
