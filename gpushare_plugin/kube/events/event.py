"""A Kubernetes Event about an object, before sending."""

from typing import Literal

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.kube.identity import ObjectIdentity

EventType = Literal["Normal", "Warning"]
"""The type of an Event: Normal, or Warning for a problem."""


class Reporter(Struct, frozen=True):
    """The reporter of Events."""

    component: str
    """The name of the program, shown by `kubectl describe` in the column From."""
    host: str
    """The node of the program, empty for an unknown node."""


class Event(Struct, frozen=True):
    """A report about an object."""

    regarding: ObjectIdentity
    """The object."""
    reason: str
    """The reason for the Event, a word in CamelCase."""
    type: EventType
    """The type of the Event."""
    action: str
    """The action of the reporter, a word in CamelCase."""
    message: str
    """A sentence for people."""


def of_node(name: str) -> ObjectIdentity:
    """Return the identity of a Node, with its name as the UID, as in the kubelet's Events.

    `kubectl describe node` finds Events with the name or the real UID as the UID; older versions find only Events with
    the name.
    """
    return ObjectIdentity("", name, uid=name, kind="Node")


def of_pod(namespace: str, name: str, uid: str) -> ObjectIdentity:
    """Return the identity of a pod; `uid` is the UID that the kubelet uses."""
    return ObjectIdentity(namespace, name, uid)
