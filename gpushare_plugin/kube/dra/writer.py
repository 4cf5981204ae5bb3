"""Writes ResourceSlices one by one, each only where it is not what it should be."""

from http import HTTPStatus

import msgspec

from gpushare_plugin.kube.client import Client, ClusterError, decoded
from gpushare_plugin.kube.dra.objects import API_VERSION, RESOURCE_SLICES, ApiResourceSlice, ApiResourceSliceSpec
from gpushare_plugin.kube.dra.pool import Pool, Specs, is_same, lost, with_times
from gpushare_plugin.kube.dra.seen import SeenResourceSlices
from gpushare_plugin.kube.names import FIELD_MANAGER


class ResourceSliceWriter:
    """Writes the ResourceSlices of one pool."""

    def __init__(self, client: Client, pool: Pool, seen: SeenResourceSlices) -> None:
        """Compare with what `seen` shows."""
        self._client = client
        self._pool = pool
        self._seen = seen
        # By name: the spec that was asked for last, and the spec in the API server's answer, unless features were lost.
        self._asked: dict[str, tuple[ApiResourceSliceSpec, ApiResourceSliceSpec]] = {}
        self.written = 0
        """The number of ResourceSlices that were created, changed or deleted."""

    @property
    def there(self) -> Specs:
        """The specs that exist, each as it was asked for where a webhook has changed something else than features."""
        return {name: self._as_asked(name, each.spec) for name, each in self._seen.by_name.items()}

    def is_current(self, name: str, spec: ApiResourceSliceSpec, owner: str) -> bool:
        """Return whether a ResourceSlice has this spec, and the Node with the UID `owner` as its owner."""
        found = self._seen.by_name.get(name)
        return (
            found is not None
            and is_same(self._as_asked(name, found.spec), spec)
            and any(each.uid == owner for each in found.metadata.owner_references)
        )

    async def put(self, name: str, spec: ApiResourceSliceSpec, owner: str) -> ApiResourceSliceSpec:
        """Create or change a ResourceSlice, and return its spec in the API server's answer; raises ClusterError."""
        found = self._seen.by_name.get(name)
        answer = await (self._create(name, spec, owner) if found is None else self._change(found, spec, owner))
        self._asked.pop(name, None)
        if not lost(spec, answer.spec):
            self._asked[name] = spec, answer.spec
        self.written += 1
        await self._seen.caught_up(answer.metadata.uid, answer.metadata.resource_version)
        return answer.spec

    async def delete(self, name: str) -> None:
        """Delete a ResourceSlice, and no other one that was made since under its name; raises ClusterError."""
        uid = self._seen.by_name[name].metadata.uid
        try:
            body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
            await self._client.request("DELETE", f"{RESOURCE_SLICES}/{name}", body=body)
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        self._asked.pop(name, None)
        self.written += 1
        await self._seen.caught_up(uid)

    async def _create(self, name: str, spec: ApiResourceSliceSpec, owner: str) -> ApiResourceSlice:
        return await self._written("POST", RESOURCE_SLICES, {"name": name}, spec, owner)

    async def _change(self, found: ApiResourceSlice, spec: ApiResourceSliceSpec, owner: str) -> ApiResourceSlice:
        # With the version, a change never replaces what somebody else has written since.
        metadata = {"resourceVersion": found.metadata.resource_version, "uid": found.metadata.uid}
        path = f"{RESOURCE_SLICES}/{found.metadata.name}"
        return await self._written("PATCH", path, metadata, with_times(spec, found.spec), owner)

    async def _written(
        self, method: str, path: str, metadata: dict[str, str], spec: ApiResourceSliceSpec, owner: str
    ) -> ApiResourceSlice:
        node = {"apiVersion": "v1", "kind": "Node", "name": self._pool.node, "uid": owner, "controller": True}
        body = {
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": {**metadata, "ownerReferences": [node]},
            # Fields that are empty are left out, but a merge patch without devices would keep the present ones.
            "spec": {"devices": [], **msgspec.to_builtins(spec)},
        }
        kind = "application/json" if method == "POST" else "application/merge-patch+json"
        answer = await self._client.request(method, path, {"fieldManager": FIELD_MANAGER}, body, kind)
        return decoded(answer, ApiResourceSlice, path, method)

    def _as_asked(self, name: str, spec: ApiResourceSliceSpec) -> ApiResourceSliceSpec:
        asked, answer = self._asked.get(name, (spec, spec))
        return asked if is_same(answer, spec) else spec
