"""Follows all Nodes and Pods of a cluster, for programs that keep an account of the cluster."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from gpushare_plugin.kube.client import NODES, PODS, Client
from gpushare_plugin.kube.collection import PAGE, Collection, Gone, Listed, Put

T = TypeVar("T")
NodeT = TypeVar("NodeT")
PodT = TypeVar("PodT")


@dataclass(frozen=True, slots=True)
class Objects(Generic[T]):
    """The followed objects of one kind, and the functions to call."""

    kind: type[T]
    """The type to decode objects as."""
    put: Callable[[T], None]
    """Called with every new or changed object."""
    remove: Callable[[Gone], None]
    """Called for every object that was deleted or left the selector."""
    consequence: str
    """A clause for the log: the work that stops while the API server cannot be followed."""
    selector: str = ""
    """The field selector of the objects, empty for all objects of the kind."""
    labels: str = ""
    """The label selector of the objects, empty for all objects of the kind."""


class ClusterFollower:
    """Passes on all Nodes and Pods and then all changes, and knows when the first lists are complete.

    A follower can be used once: a second run would not remove objects that were deleted between the runs. After a
    defect, a new follower fills a new account from the beginning.
    """

    def __init__(  # noqa: PLR0913 - the settings of a followed cluster
        self,
        client: Client,
        nodes: Objects[NodeT],
        pods: Objects[PodT],
        *,
        page: int = PAGE,
        changed: Callable[[], None] = lambda: None,
        forbidden: Callable[[str], None] = lambda _what: None,
    ) -> None:
        """Follow Nodes and Pods in lists of `page` objects; `changed` is called after each object passed on.

        `forbidden` is called with `nodes` or `pods` each time the server forbids reading the Nodes or the Pods.
        """
        self._nodes = Following(client, NODES, nodes, page, changed, partial(forbidden, "nodes"))
        self._pods = Following(client, PODS, pods, page, changed, partial(forbidden, "pods"))

    @property
    def missing(self) -> list[str]:
        """The kinds without a complete list yet: `nodes`, `pods`, or both."""
        listed = {"nodes": self._nodes.listed, "pods": self._pods.listed}
        return [name for name, event in listed.items() if not event.is_set()]

    @property
    def age(self) -> float | None:
        """Seconds since the last data on Nodes or on Pods, whichever is longer ago; None before the first lists."""
        heard = [self._nodes.heard_at, self._pods.heard_at]
        now = asyncio.get_running_loop().time()
        return None if None in heard else max(now - at for at in heard if at is not None)

    @property
    def silence(self) -> float | None:
        """Seconds since the last data while requests for Nodes or Pods fail; None while the API server answers."""
        return self.age if self._nodes.failing or self._pods.failing else None

    @property
    def pods_in_order(self) -> bool:
        """Whether changes of Pods are passed on in the order in which the changes happened.

        A watch keeps the order, as long as no failure is known. A list sorts the pods by name, and some changes are
        missing until the end of the list.
        """
        return self._pods.live

    async def listed(self) -> None:
        """Wait for the first lists of Nodes and Pods."""
        await self._nodes.listed.wait()
        await self._pods.listed.wait()

    async def follow(self) -> None:
        """Follow Nodes and Pods; runs until cancelled, and raises the errors of `put` and `remove`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.follow())
            group.create_task(self._pods.follow())


class Following(Generic[T]):
    """Follows the objects of one kind."""

    def __init__(  # noqa: PLR0913, PLR0917 - the settings of a followed kind
        self,
        client: Client,
        path: str,
        objects: Objects[T],
        page: int,
        changed: Callable[[], None],
        forbidden: Callable[[], None],
    ) -> None:
        """Follow the objects of `path` in lists of `page`; the functions are those of ClusterFollower."""
        self._objects = objects
        self._changed = changed
        self._collection = Collection(
            client,
            path,
            objects.kind,
            consequence=objects.consequence,
            selector=objects.selector,
            labels=objects.labels,
            page=page,
            forbidden=forbidden,
        )
        self.listed = asyncio.Event()
        """Set once the first list is complete."""

    @property
    def live(self) -> bool:
        """Whether changes are passed on in the order in which they happened."""
        return self._collection.live

    @property
    def failing(self) -> bool:
        """Whether the last request failed."""
        return self._collection.failing

    @property
    def heard_at(self) -> float | None:
        """The time of the last data, None before the first."""
        return self._collection.heard_at

    @property
    def silence(self) -> float | None:
        """Seconds since the last data while requests fail; None while the API server answers, or before the first."""
        if not self.failing or self.heard_at is None:
            return None
        return asyncio.get_running_loop().time() - self.heard_at

    async def follow(self) -> None:
        """Follow; runs until cancelled, and raises the errors of `put` and `remove`."""
        async with aclosing(self._collection.changes()) as changes:
            async for change in changes:
                match change:
                    case Put(found):
                        self._objects.put(found)
                    case Gone():
                        self._objects.remove(change)
                    case Listed():
                        self.listed.set()
                        continue
                self._changed()
