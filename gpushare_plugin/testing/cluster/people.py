"""The users of an API server: whose a token is, and what a user may do, as reviews tell it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare_plugin.testing.cluster.store.errors import BadRequestError

Object = dict[str, Any]


@dataclass(slots=True)
class Person:
    """A user; `lists_pods` are the namespaces whose pods the user may list, None for all of them."""

    name: str
    lists_pods: frozenset[str] | None = frozenset()
    paths: frozenset[str] = frozenset({"/gpushare"})
    groups: tuple[str, ...] = ("system:authenticated",)


@dataclass(slots=True)
class People:
    """All users: `tokens` says whose a token is, and `by_name` has those who come without a token, too.

    `reviewed` is what reviews of rights asked.
    """

    tokens: dict[str, Person] = field(default_factory=dict)
    by_name: dict[str, Person] = field(default_factory=dict)
    reviewed: list[Object] = field(default_factory=list)

    @property
    def reviews(self) -> Mapping[str, Callable[[Object], Object]]:
        """What answers a review, by its path."""
        return {
            "/apis/authentication.k8s.io/v1/tokenreviews": self._token,
            "/apis/authorization.k8s.io/v1/subjectaccessreviews": self._access,
        }

    def _token(self, review: Object) -> Object:
        token = review["spec"].get("token")
        if not token:
            raise BadRequestError("token is required for TokenReview in authentication")
        if (person := self.tokens.get(token)) is None:
            return {**review, "status": {"user": {}, "error": "[invalid bearer token]"}}
        user = {"username": person.name, "groups": person.groups}
        return {**review, "status": {"authenticated": True, "user": user}}

    def _access(self, review: Object) -> Object:
        spec = review["spec"]
        self.reviewed.append(spec)
        known = {person.name: person for person in self.tokens.values()} | self.by_name
        person = known.get(spec["user"])
        return {**review, "status": {"allowed": person is not None and _may(person, spec)}}


def _may(person: Person, spec: Object) -> bool:
    if (path := spec.get("nonResourceAttributes")) is not None:
        return path["verb"] == "get" and path["path"] in person.paths
    asked = spec["resourceAttributes"]
    if (asked["verb"], asked["group"], asked["resource"]) != ("list", "", "pods"):
        return False
    return person.lists_pods is None or asked["namespace"] in person.lists_pods
