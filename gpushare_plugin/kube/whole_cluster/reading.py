"""Reads collections of the API server for people: once, in pages, with errors that say what to do."""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Generic, TypeVar

from gpushare_plugin.kube.client import Client, ClusterError, Timing, decoded
from gpushare_plugin.kube.objects import Kept, ListMetadata

T = TypeVar("T")

PAGE = 1000
"""Number of objects in a page: twice as many as with kubectl, because each page takes a round trip."""


ATTEMPTS = 5
"""Largest number of requests for one answer while the API server is overloaded (429)."""

LONGEST_PAUSE = 10.0
"""Longest wait between two requests, in seconds, because people wait. The API server itself requests one second."""

PATIENT = Timing(request=60.0)
"""The API server's own time limit for a request: a page can have 20 MiB, and a person's connection can be slow."""

_WITH_KUBECONFIG: Mapping[int | None, str] = {
    None: "; check the kubeconfig, and whether its server can be reached from here: `kubectl get nodes`",
    HTTPStatus.UNAUTHORIZED: "; the API server does not accept the credentials of the kubeconfig: log in again, or "
    "choose another --context",
    HTTPStatus.FORBIDDEN: "; this needs the right to list {} in the whole cluster: see the ClusterRole in "
    "docs/inspect.md",
}
"""What people can do about an error of the API server, by its HTTP status, None without an answer."""

_ELSEWHERE = "run this in a pod of the scheduler extender, or with a kubeconfig (docs/inspect.md)"
_IN_POD: Mapping[int | None, str] = {
    None: "; this needs the token of a service account in this pod, and a connection to the API server: otherwise "
    f"{_ELSEWHERE}",
    HTTPStatus.UNAUTHORIZED: f"; the API server does not accept the token of this pod's service account: {_ELSEWHERE}",
    HTTPStatus.FORBIDDEN: "; this needs the right to list {} in the whole cluster, which the service account of this "
    f"pod does not have: {_ELSEWHERE}",
}
"""The same within a pod, whose service account asks."""


class DecodedPage(Kept, Generic[T], frozen=True):
    """A page of a list, decoded in one step: people wait, and should see the error of a broken object."""

    metadata: ListMetadata = ListMetadata()
    """The version of the list and the token of the next page."""
    items: list[T] | None = None
    """The decoded objects."""


class Reading(Generic[T]):
    """Reads a collection once, in pages of `page` objects, or in one piece for 0."""

    def __init__(  # noqa: PLR0913, PLR0917 - what is read
        self, client: Client, path: str, kind: type[T], selector: str, page: int, labels: str = ""
    ) -> None:
        """Read the objects of `path` that a field selector and a label selector select; empty for all."""
        self._client = client
        self._path = path
        self._query = query_of(selector, page, labels)
        self._kind = DecodedPage[kind]  # type: ignore[valid-type]

    async def into(self, put: Callable[[T], None]) -> None:
        """Pass all objects to `put` while the next page is on its way; raises ClusterError."""
        asked: asyncio.Task[DecodedPage[T]] | None = asyncio.create_task(self._page({}))
        try:
            while asked is not None:
                page = await asked
                token = page.metadata.continue_
                asked = asyncio.create_task(self._page({"continue": token})) if token else None
                await asyncio.sleep(0)  # the next request goes out before the work on this page
                for each in page.items or ():
                    put(each)
        finally:
            if asked is not None:
                asked.cancel()

    async def _page(self, more: Mapping[str, str]) -> DecodedPage[T]:
        return decoded(await answered(self._client, self._path, {**self._query, **more}), self._kind, self._path)


def query_of(selector: str, page: int, labels: str = "") -> dict[str, str]:
    """Return the query for objects in pages of `page`, 0 for no pages.

    The field selector and the label selector `labels` select the objects; an empty text selects all.
    """
    parts = {"fieldSelector": selector, "labelSelector": labels, "limit": str(page) if page else ""}
    return {name: value for name, value in parts.items() if value}


async def answered(client: Client, path: str, query: Mapping[str, str]) -> bytes:
    """Return the answer to a request; raises ClusterError with a remedy for people."""
    try:
        return await _in_turn(client, path, query)
    except ClusterError as error:
        if error.status == HTTPStatus.GONE:
            raise
        remedy = (_IN_POD if client.in_pod else _WITH_KUBECONFIG).get(error.status, "")
        raise ClusterError(f"{error}{remedy.format(path.rpartition('/')[2])}", error.status) from error


async def _in_turn(client: Client, path: str, query: Mapping[str, str]) -> bytes:
    """Return the answer to a request, asking an overloaded API server again; raises ClusterError."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await client.request("GET", path, query)
        except ClusterError as error:
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            await asyncio.sleep(min(1.0 if error.retry_after is None else error.retry_after, LONGEST_PAUSE))
    return await client.request("GET", path, query)
