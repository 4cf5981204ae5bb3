"""The JSON of kube-scheduler's extender protocol, version 1.

Keys are the names of the Go fields, for `k8s.io/kube-scheduler/extender/v1` has no others. Only what is used of pods
and nodes is decoded.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from gpushare_plugin.adapters.cluster.objects import Identified, Pod
from gpushare_plugin.adapters.cluster.scheduling.binding import PodIdentity
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.text import in_words

T = TypeVar("T")


class ProtocolError(GpushareError):
    """A request is not what kube-scheduler sends."""


class _Message(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """A part of the protocol."""


NodeObject = msgspec.Raw
"""A whole Node object, undecoded."""


class NodeObjects(msgspec.Struct, frozen=True):
    """Whole Node objects, which are given back as they came."""

    items: list[NodeObject] | None = None


class Arguments(_Message, frozen=True):
    """What `filter` and `prioritize` are asked; names where the extender is `nodeCacheCapable`, or else objects."""

    pod: Pod
    nodes: NodeObjects | None = None
    node_names: list[str] | None = None


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

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str

    @property
    def pod(self) -> PodIdentity:
        """The pod."""
        return PodIdentity(self.pod_namespace, self.pod_name, self.pod_uid)


class BindingResult(_Message, frozen=True):
    """Why a pod was not bound; empty where it was."""

    error: str = ""


class MetaPod(_Message, frozen=True):
    """A pod by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(_Message, frozen=True):
    """Pods of a node to evict, and how many disruption budgets that violates."""

    pods: Sequence[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(_Message, frozen=True):
    """As `MetaVictims`, with whole pods."""

    pods: Sequence[Identified] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArguments(_Message, frozen=True):
    """The victims that kube-scheduler found, by node; by UID where the extender is `nodeCacheCapable`."""

    pod: Pod
    node_name_to_victims: Mapping[str, Victims] | None = None
    node_name_to_meta_victims: Mapping[str, MetaVictims] | None = None

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


def decode(body: bytes, kind: type[T]) -> T:
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
