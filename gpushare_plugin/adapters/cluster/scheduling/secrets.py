"""Secrets of one namespace, which several processes write: each write names the version that it was decided on."""

from base64 import b64encode
from collections.abc import Mapping
from http import HTTPStatus

from gpushare_plugin.adapters.cluster.client import Client, ClusterError, Object, decoded
from gpushare_plugin.adapters.cluster.objects import Secret

LABELS = {"app.kubernetes.io/managed-by": "gpushare"}


class Secrets:
    """The Secrets of a namespace, each read and written by its name alone."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Read nothing yet."""
        self._client = client
        self.path = f"/api/v1/namespaces/{namespace}/secrets"

    async def read(self, name: str) -> tuple[dict[str, bytes], str | None]:
        """Return what a Secret has, and its version: nothing and None where there is none; raises ClusterError."""
        path = f"{self.path}/{name}"
        try:
            found = decoded(await self._client.request("GET", path), Secret, path)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return {}, None
            raise
        return found.data, found.metadata.resource_version

    async def write(self, name: str, values: Mapping[str, bytes], version: str | None) -> bool:
        """Write a Secret where it has this version, None for none; return False where another one wrote it meanwhile.

        Raises ClusterError, also where there is no such namespace.
        """
        metadata = {"name": name, "labels": LABELS} | ({} if version is None else {"resourceVersion": version})
        data = {key: b64encode(value).decode() for key, value in values.items()}
        body: Object = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
        if version is None:
            request, meanwhile = ("POST", self.path), {HTTPStatus.CONFLICT}
        else:
            # One that is not found was deleted meanwhile; of a POST, the namespace is what is not found.
            request, meanwhile = ("PUT", f"{self.path}/{name}"), {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND}
        try:
            await self._client.request(*request, body=body)
        except ClusterError as error:
            if error.status in meanwhile:
                return False
            raise
        return True
