"""How objects of `resource.k8s.io` are created and changed over HTTP (kubernetes: pkg/registry/resource)."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any
from uuid import uuid4

from gpushare_plugin.testing.cluster.dra import claims, slices
from gpushare_plugin.testing.cluster.dra.gates import Gates
from gpushare_plugin.testing.cluster.store.errors import InvalidError, NotFoundError
from gpushare_plugin.testing.cluster.store.objects import Store, merged
from gpushare_plugin.testing.cluster.store.place import Place

Object = dict[str, Any]

GROUP = "resource.k8s.io"

Permitted = Callable[[str, str, str | None, str | None, str], bool]
"""Whether RBAC permits a verb, on a resource, in a namespace, of a name, in a group."""


class DraObjects:
    """Creates and changes ResourceSlices, ResourceClaims, their templates and DeviceClasses in a store.

    `gates` can be replaced at any time, as by another start of the API server. `node` is the node that the token of the
    service account is bound to, None for a token that is bound to none.
    """

    def __init__(self, store: Store, permitted: Permitted) -> None:
        """Begin with the gates of 1.36."""
        self._store = store
        self._permitted = permitted
        self.gates = Gates()
        self.node: str | None = None

    def create(self, place: Place, body: Object) -> Object:
        """Create an object; raises InvalidError and ExistsError."""
        new = deepcopy(body)
        if "name" not in new["metadata"] and (prefix := new["metadata"].get("generateName")):
            new["metadata"]["name"] = f"{prefix}{uuid4().hex[:5]}"
        new.pop("status", None)
        self._check(place, new, None)
        if place.collection.resource == "resourceslices":
            new["metadata"]["generation"] = 1
        return self._store.create(place.collection.path, new)

    def change(self, verb: str, place: Place, body: Object) -> Object:
        """Update an object, or patch it by a JSON merge patch; raises InvalidError, NotFoundError and ConflictError."""
        found = self._store.find(place.collection.path, place.name)
        if not found:
            raise NotFoundError(f'{place.collection.resource}.{GROUP} "{place.name}" not found')
        old = found[0]
        new = deepcopy(merged(old, body) if verb == "patch" else body)
        if place.subresource == "status":
            version = new["metadata"].get("resourceVersion", old["metadata"]["resourceVersion"])
            new = {
                **old,
                "metadata": {**old["metadata"], "resourceVersion": version},
                "status": new.get("status") or {},
            }
            new = deepcopy(new)
            self._check_status(verb, place, new, old)
        else:
            if "status" in old:
                new["status"] = old["status"]
            self._check(place, new, old)
            if place.collection.resource == "resourceslices":
                new["metadata"]["generation"] = old["metadata"].get("generation", 1) + (new["spec"] != old["spec"])
        return self._store.replace(place.collection.path, new)

    def _check(self, place: Place, new: Object, old: Object | None) -> None:
        match place.collection.resource:
            case "resourceslices":
                self.gates.drop_from_slice(new, old)
                _refuse(new, list(slices.problems(new, old)))
            case "resourceclaims":
                self.gates.drop_from_claim(new, old)
                _refuse(new, list(claims.spec_problems(new["spec"], old and old["spec"], admin=self._admin(place))))
            case "resourceclaimtemplates":
                inner = new["spec"].get("spec") or {}
                was = old["spec"].get("spec") if old else None
                _refuse(new, list(claims.spec_problems(inner, was, admin=self._admin(place))))

    def _check_status(self, verb: str, place: Place, new: Object, old: Object) -> None:
        self.gates.drop_from_claim(new, old)
        claims.drop_deallocated(new, old)
        if self.gates.granular_status:
            self._authorize(verb, place, new, old)
        _refuse(new, list(claims.status_problems(new, old)))

    def _authorize(self, verb: str, place: Place, new: Object, old: Object) -> None:
        """Ask for the rights of 1.36 (registry/resource/utils.go, AuthorizedForBinding, AuthorizedForDeviceStatus)."""
        is_now, was = new["status"], old.get("status") or {}
        if any(is_now.get(field) != was.get(field) for field in ("allocation", "reservedFor")) and not self._permitted(
            verb, "resourceclaims/binding", None, None, GROUP
        ):
            need = f'resource="resourceclaims/binding", verb="{verb}" permission'
            raise InvalidError(f"status.allocation: Forbidden: changing status.allocation requires {need}")
        verbs = [f"arbitrary-node:{verb}"]
        if self.node is not None and claims.node_of(new) == self.node:
            verbs.insert(0, f"associated-node:{verb}")
        for driver in sorted(claims.changed_drivers(new, old)) if is_now.get("allocation") else ():
            where = (place.collection.namespace, driver, GROUP)
            if not any(self._permitted(each, "resourceclaims/driver", *where) for each in verbs):
                need = f'resource="resourceclaims/driver", verb="{verbs}" permission'
                raise InvalidError(f"status.devices: Forbidden: changing status.devices requires {need}")

    def _admin(self, place: Place) -> bool:
        found = self._store.find("/api/v1/namespaces", place.collection.namespace or "")
        return any((each["metadata"].get("labels") or {}).get(claims.ADMIN_LABEL) == "true" for each in found)


def _refuse(new: Object, problems: list[str]) -> None:
    if problems:
        raise InvalidError(
            f'{new.get("kind", "object")} "{new["metadata"].get("name")}" is invalid: {", ".join(problems)}'
        )
