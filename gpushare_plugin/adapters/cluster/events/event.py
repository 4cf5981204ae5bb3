"""A Kubernetes Event before it is sent: what happened to which object."""

from typing import Literal

from gpushare_plugin.foundation.structs import Struct

EventType = Literal["Normal", "Warning"]


class Regarding(Struct, frozen=True):
    """The object that an Event is about; a Node has no namespace, and `uid` is empty where it is not known."""

    kind: Literal["Node", "Pod"]
    name: str
    namespace: str = ""
    uid: str = ""


class Reporter(Struct, frozen=True):
    """Who reports Events: the name of the program, and the node it runs on.

    `kubectl describe` shows `component` in the column From. `host` is empty where the node is not known.
    """

    component: str
    host: str


class Event(Struct, frozen=True):
    """What happened: `reason` and `action` are words in CamelCase, `message` says it in a sentence."""

    regarding: Regarding
    reason: str
    type: EventType
    action: str
    message: str


def of_node(name: str) -> Regarding:
    """Return the Node of this name; like the kubelet's Events, with its name as the UID.

    `kubectl describe node` finds Events of either UID, and its older versions only those of the name.
    """
    return Regarding("Node", name, uid=name)


def of_pod(namespace: str, name: str, uid: str) -> Regarding:
    """Return a pod; `uid` as the kubelet has it."""
    return Regarding("Pod", name, namespace, uid)
