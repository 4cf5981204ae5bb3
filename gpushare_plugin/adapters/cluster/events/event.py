"""A Kubernetes Event before it is sent: what happened to which object."""

from typing import Literal

from gpushare_plugin.adapters.cluster.identity import ObjectIdentity
from gpushare_plugin.foundation.structs import Struct

EventType = Literal["Normal", "Warning"]


class Reporter(Struct, frozen=True):
    """Who reports Events: the name of the program, and the node it runs on.

    `kubectl describe` shows `component` in the column From. `host` is empty where the node is not known.
    """

    component: str
    host: str


class Event(Struct, frozen=True):
    """What happened to the object `regarding`: `reason` and `action` are words in CamelCase, `message` a sentence."""

    regarding: ObjectIdentity
    reason: str
    type: EventType
    action: str
    message: str


def of_node(name: str) -> ObjectIdentity:
    """Return the Node of this name; like the kubelet's Events, with its name as the UID.

    `kubectl describe node` finds Events of either UID, and its older versions only those of the name.
    """
    return ObjectIdentity("", name, uid=name, kind="Node")


def of_pod(namespace: str, name: str, uid: str) -> ObjectIdentity:
    """Return a pod; `uid` as the kubelet has it."""
    return ObjectIdentity(namespace, name, uid)
