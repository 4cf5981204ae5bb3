"""What rendered Roles and ClusterRoles allow a service account, as the API server's RBAC authorizer decides."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True, slots=True)
class Permission:
    """One verb on one resource: in one namespace or, with None, everywhere; of one object or, with None, of all.

    `group` is the API group, empty for the core group.
    """

    verb: str
    resource: str
    namespace: str | None = None
    name: str | None = None
    group: str = ""

    def allows(self, verb: str, resource: str, namespace: str | None, name: str | None, group: str = "") -> bool:
        """Tell whether a request needs nothing more than this; a list or watch of one name is a request for it."""
        return (
            (self.verb, self.group, self.resource) == (verb, group, resource)
            and self.namespace in {None, namespace}
            and self.name in {None, name}
        )


def granted(objects: Iterable[Mapping[str, Any]], account: str) -> frozenset[Permission]:
    """Return every permission that `objects` bind to the service account of this name."""
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
        if "*" in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]):
            raise ValueError(f"found {rule}; expected API groups, resources and verbs by name")
        names = rule.get("resourceNames") or [None]
        for verb, group, resource, name in product(rule["verbs"], rule["apiGroups"], rule["resources"], names):
            yield Permission(verb, resource, namespace, name, group)
