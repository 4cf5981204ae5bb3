"""Which pod or Node of the API is meant, where its name alone is not enough."""

from typing import Literal
from urllib.parse import quote

from gpushare_plugin.foundation.structs import Struct


class ObjectIdentity(Struct, frozen=True):
    """One pod or Node: another object of the same name has another UID.

    - `namespace`: empty for a Node
    - `name`: unique in the namespace at any time
    - `uid`: empty where the UID is not known
    - `kind`: as the API names the type of the object
    """

    namespace: str
    name: str
    uid: str
    kind: Literal["Node", "Pod"] = "Pod"

    def __str__(self) -> str:
        """Return the pod in words."""
        return f"pod {self.label}"

    @property
    def label(self) -> str:
        """The name of the pod in the log."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """The path of the pod at the API server."""
        return f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods/{quote(self.name, safe='')}"
