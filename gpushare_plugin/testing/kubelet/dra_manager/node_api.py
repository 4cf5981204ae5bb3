"""What the DRA manager asks of the API server: ResourceClaims of pods, and to delete ResourceSlices of the node."""

from dataclasses import dataclass
from typing import Any

from gpushare_plugin.kube.client import Client, ClusterError, decoded
from gpushare_plugin.testing.kubelet.shared.errors import DraError

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
"""The path of the ResourceClaims of a namespace."""
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
"""The path of all ResourceSlices."""


@dataclass(frozen=True, slots=True)
class NodeApi:
    """The API server as the kubelet of `node` uses it, with a `client` of the kubelet's own."""

    client: Client
    node: str

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """Return a ResourceClaim; raises DraError."""
        path = f"{CLAIMS.format(namespace)}/{name}"
        try:
            return decoded(await self.client.request("GET", path), dict[str, Any], path)
        except ClusterError as error:
            raise DraError(f"fetch ResourceClaim {name}: {error}") from error

    async def delete_slices(self, driver: str | None) -> None:
        """Delete the ResourceSlices of the node, of one driver or, with None, of all; raises ClusterError."""
        selected = f"spec.nodeName={self.node}" + (f",spec.driver={driver}" if driver else "")
        await self.client.request("DELETE", SLICES, {"fieldSelector": selected})
