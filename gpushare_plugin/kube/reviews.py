"""Asks the API server whose a token is, and what a user may do.

Facts: TokenReview of authentication.k8s.io/v1 (kubernetes: pkg/registry/authentication/tokenreview/storage.go), and
SubjectAccessReview of authorization.k8s.io/v1, in the API reference of Kubernetes.
"""

from collections.abc import Mapping

from gpushare_plugin.base.structs import field
from gpushare_plugin.kube.client import Client, Object, T, decoded
from gpushare_plugin.kube.objects import Kept

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
"""The path of reviews of tokens."""
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
"""The path of reviews of rights."""


class User(Kept, frozen=True):
    """A user of the API server."""

    username: str = ""
    """The name."""
    uid: str = ""
    """An identifier that no other user of the same name has; empty if not known."""
    groups: tuple[str, ...] = ()
    """The names of the groups of the user."""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What else the authenticator knows of the user, for authorizers."""


class _TokenStatus(Kept, frozen=True):
    authenticated: bool = False
    user: User = User()


class _TokenReview(Kept, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(Kept, frozen=True):
    allowed: bool = False


class _AccessReview(Kept, frozen=True):
    status: _AccessStatus = _AccessStatus()


async def user_of(client: Client, token: str) -> User | None:
    """Return the user of a bearer token, None for a token that the API server does not accept; raises ClusterError."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = (await _reviewed(client, TOKEN_REVIEWS, body, _TokenReview)).status
    return status.user if status.authenticated and status.user.username else None


async def may_get(client: Client, user: User, path: str) -> bool:
    """Return whether a user may read a path that is no resource; raises ClusterError."""
    return await _may(client, user, {"nonResourceAttributes": {"path": path, "verb": "get"}})


async def may_list_pods(client: Client, user: User, namespace: str = "") -> bool:
    """Return whether a user may list the pods of a namespace, empty for all namespaces; raises ClusterError."""
    asked = {"verb": "list", "group": "", "version": "v1", "resource": "pods", "namespace": namespace}
    return await _may(client, user, {"resourceAttributes": asked})


async def _may(client: Client, user: User, attributes: Object) -> bool:
    who = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {**who, **attributes}}
    return (await _reviewed(client, ACCESS_REVIEWS, body, _AccessReview)).status.allowed


async def _reviewed(client: Client, path: str, body: Object, kind: type[T]) -> T:
    return decoded(await client.request("POST", path, body=body), kind, path, "POST")
