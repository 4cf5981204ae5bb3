"""Secrets of one namespace, written by several processes: each write names the version that the writer has read."""

from base64 import b64encode
from collections.abc import Mapping
from http import HTTPStatus

from gpushare_plugin.kube.client import Client, ClusterError, Object, decoded
from gpushare_plugin.kube.objects import Secret

LABELS = {"app.kubernetes.io/managed-by": "gpushare"}
"""The labels of the written Secrets."""


class Secrets:
    """The Secrets of a namespace, read and written by name, never listed."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Read nothing yet."""
        self._client = client
        self.path = f"/api/v1/namespaces/{namespace}/secrets"
        """The path of the Secrets of the namespace."""

    async def read(self, name: str) -> tuple[dict[str, bytes], str | None]:
        """Return the values and the version of a Secret; raises ClusterError.

        A missing Secret has no values and the version None.
        """
        path = f"{self.path}/{name}"
        try:
            found = decoded(await self._client.request("GET", path), Secret, path)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return {}, None
            raise
        return found.data, found.metadata.resource_version

    async def write(self, name: str, values: Mapping[str, bytes], version: str | None) -> bool:
        """Replace a Secret of this version, or create a Secret for None; return False if another process was faster.

        The faster process has created, changed or deleted the Secret since the read. Raises ClusterError, also for a
        missing namespace.
        """
        metadata = {"name": name, "labels": LABELS} | ({} if version is None else {"resourceVersion": version})
        data = {key: b64encode(value).decode() for key, value in values.items()}
        body: Object = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
        if version is None:
            request, meanwhile = ("POST", self.path), {HTTPStatus.CONFLICT}
        else:
            # A Secret that is not found was deleted since the read; a POST misses the namespace, not the Secret.
            request, meanwhile = ("PUT", f"{self.path}/{name}"), {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND}
        try:
            await self._client.request(*request, body=body)
        except ClusterError as error:
            if error.status in meanwhile:
                return False
            raise
        return True
