"""What the path of a request names: a collection of objects, one of them, and a part of that one."""

from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote

from gpushare_plugin.testing.cluster.store.errors import NotFoundError

Key = tuple[str, str]
"""Namespace, empty for objects that have none, and name."""


KINDS = {
    "configmaps": "ConfigMap",
    "csidrivers": "CSIDriver",
    "csinodes": "CSINode",
    "csistoragecapacities": "CSIStorageCapacity",
    "daemonsets": "DaemonSet",
    "deployments": "Deployment",
    "deviceclasses": "DeviceClass",
    "devicetaintrules": "DeviceTaintRule",
    "endpointslices": "EndpointSlice",
    "events": "Event",
    "leases": "Lease",
    "namespaces": "Namespace",
    "nodes": "Node",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "persistentvolumes": "PersistentVolume",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "pods": "Pod",
    "replicasets": "ReplicaSet",
    "replicationcontrollers": "ReplicationController",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "resourceslices": "ResourceSlice",
    "secrets": "Secret",
    "services": "Service",
    "statefulsets": "StatefulSet",
    "storageclasses": "StorageClass",
    "subjectaccessreviews": "SubjectAccessReview",
    "tokenreviews": "TokenReview",
    "volumeattachments": "VolumeAttachment",
}
"""The kind of the objects of each resource, whatever its group: of what gpushare uses, and kube-scheduler reads."""


@dataclass(frozen=True, slots=True)
class Collection:
    """All objects of one kind: of one namespace, or everywhere."""

    api: str
    """Such as `/api/v1` or `/apis/coordination.k8s.io/v1`."""
    resource: str
    namespace: str | None = None

    @property
    def table(self) -> tuple[str, str]:
        """The kind of objects, wherever they are."""
        return self.api, self.resource

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api.split("/")[2] if self.api.startswith("/apis/") else ""

    @property
    def type_meta(self) -> dict[str, str]:
        """What each of the objects says of its kind, at its beginning."""
        return {"kind": KINDS[self.resource], "apiVersion": self.api.split("/", 2)[2]}

    @property
    def path(self) -> str:
        """Where it is."""
        within = f"namespaces/{self.namespace}/" if self.namespace else ""
        return f"{self.api}/{within}{self.resource}"

    def key(self, name: str) -> Key:
        """Return what identifies the object of this name."""
        return self.namespace or "", name


@dataclass(frozen=True, slots=True)
class Place:
    """A collection, and perhaps the name of one object in it and of a part of that, such as `status`."""

    collection: Collection
    name: str
    subresource: str

    @classmethod
    def parse(cls, path: str) -> Self:
        """Return what `path` names, as it is on the wire; raises NotFoundError where that is no resource."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        split = {"api": 2, "apis": 3}.get(parts[0], len(parts))
        api, rest = "/" + "/".join(parts[:split]), parts[split:]
        namespace = rest[1] if len(rest) > 2 and rest[0] == "namespaces" else None  # noqa: PLR2004 - and a resource
        resource, name, subresource = (*rest[2 if namespace else 0 :], "", "", "")[:3]
        if resource not in KINDS:
            raise NotFoundError("the server could not find the requested resource")
        return cls(Collection(api, resource, namespace), name, subresource)


def collection(path: str) -> Collection:
    """Return the collection that `path` names; raises NotFoundError."""
    return Place.parse(path).collection
