"""What rendered Roles and ClusterRoles allow a service account, as the API server's RBAC authorizer decides."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True, slots=True)
class Permission:
    """One verb on one resource: in one namespace or, with None, everywhere; of one object or, with None, of all."""

    verb: str
    resource: str
    namespace: str | None = None
    name: str | None = None

    def allows(self, verb: str, resource: str, namespace: str | None, name: str | None) -> bool:
        """Tell whether a request needs nothing more than this; a list or watch of one name is a request for it."""
        return (
            (self.verb, self.resource) == (verb, resource)
            and self.namespace in {None, namespace}
            and self.name in {None, name}
        )


def granted(objects: Iterable[Mapping[str, Any]], account: str) -> frozenset[Permission]:
    """Return every permission that `objects` bind to the service account of this name; all are of the core group."""
    made = list(objects)
    roles = {(each["kind"], each["metadata"]["name"]): each for each in made if each["kind"] in {"Role", "ClusterRole"}}
    found: set[Permission] = set()
    for binding in made:
        if binding["kind"] not in {"RoleBinding", "ClusterRoleBinding"}:
            continue
        if not any(each["kind"] == "ServiceAccount" and each["name"] == account for each in binding["subjects"]):
            continue
        role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        found.update(_permissions(role, binding["metadata"].get("namespace")))
    return frozenset(found)


def _permissions(role: Mapping[str, Any], namespace: str | None) -> Iterator[Permission]:
    for rule in role["rules"]:
        if rule["apiGroups"] != [""] or "*" in (*rule["resources"], *rule["verbs"]):
            raise ValueError(f"found {rule}; expected verbs and resources of the core group by name")
        for verb, resource, name in product(rule["verbs"], rule["resources"], rule.get("resourceNames") or [None]):
            yield Permission(verb, resource, namespace, name)
