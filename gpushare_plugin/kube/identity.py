"""The identity of a pod or Node of the API, for uses in which the name alone is not enough."""

from typing import Literal
from urllib.parse import quote

from gpushare_plugin.base.structs import Struct


class ObjectIdentity(Struct, frozen=True):
    """The identity of a pod or Node."""

    namespace: str
    """The namespace, empty for a Node."""
    name: str
    """The name, unique in the namespace at any time."""
    uid: str
    """The UID, different for a later object of the same name; empty for an unknown UID."""
    kind: Literal["Node", "Pod"] = "Pod"
    """The type of the object, as in the API."""

    def __str__(self) -> str:
        """Return the pod in words, for messages."""
        return f"pod {self.label}"

    @property
    def label(self) -> str:
        """The name of the pod in the log."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """The path of the pod at the API server."""
        return f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods/{quote(self.name, safe='')}"
