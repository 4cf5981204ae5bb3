"""Follows every Node and every Pod of a cluster, for whoever fills an account of it."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from gpushare_plugin.adapters.cluster.client import NODES, PODS, Client
from gpushare_plugin.adapters.cluster.collection import PAGE, Collection, Gone, Listed, Put

T = TypeVar("T")
NodeT = TypeVar("NodeT")
PodT = TypeVar("PodT")


@dataclass(frozen=True, slots=True)
class Objects(Generic[T]):
    """What is followed of one kind: every object, or those of a field selector, each decoded as `kind`.

    `put` is called with each object as it is now, `remove` for each that is there no more. `consequence` is a sentence
    for the log: what does not happen while the API server cannot be followed.
    """

    kind: type[T]
    put: Callable[[T], None]
    remove: Callable[[Gone], None]
    consequence: str
    selector: str = ""


class ClusterFollower:
    """Passes on what there is and then each change, and knows when everything that there was has been passed on.

    It can be used once: it says what changed since the first list, so another attempt would not remove what went in
    between. After a defect, another follower fills another account from the beginning.
    """

    def __init__(  # noqa: PLR0913 - what a cluster is followed with
        self,
        client: Client,
        nodes: Objects[NodeT],
        pods: Objects[PodT],
        *,
        page: int = PAGE,
        changed: Callable[[], None] = lambda: None,
        forbidden: Callable[[str], None] = lambda _what: None,
    ) -> None:
        """Follow Nodes and Pods, listed `page` at a time; `changed` is called after each that was passed on.

        `forbidden` is called with `nodes` or `pods` each time the server says that we may not read these.
        """
        self._nodes = _Following(client, NODES, nodes, page, changed, partial(forbidden, "nodes"))
        self._pods = _Following(client, PODS, pods, page, changed, partial(forbidden, "pods"))

    @property
    def missing(self) -> list[str]:
        """What has not been listed yet."""
        listed = {"nodes": self._nodes.listed, "pods": self._pods.listed}
        return [name for name, event in listed.items() if not event.is_set()]

    @property
    def age(self) -> float | None:
        """Seconds since the API server last sent anything of the one it was silent about longer; None before a list."""
        heard = [self._nodes.heard_at, self._pods.heard_at]
        now = asyncio.get_running_loop().time()
        return None if None in heard else max(now - at for at in heard if at is not None)

    @property
    def pods_in_order(self) -> bool:
        """Whether changes of Pods are passed on in the order in which they happened, as far as is known.

        A watch does that. While pods are listed, they come by name, and some changes are missing until the end.
        """
        return self._pods.live

    async def listed(self) -> None:
        """Wait until Nodes and Pods have been listed."""
        await self._nodes.listed.wait()
        await self._pods.listed.wait()

    async def follow(self) -> None:
        """Follow both; runs until cancelled, and raises what `put` and `remove` do."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.follow())
            group.create_task(self._pods.follow())


class _Following(Generic[T]):
    """Follows one kind."""

    def __init__(  # noqa: PLR0913, PLR0917 - what one kind is followed with
        self,
        client: Client,
        path: str,
        objects: Objects[T],
        page: int,
        changed: Callable[[], None],
        forbidden: Callable[[], None],
    ) -> None:
        self._objects = objects
        self._changed = changed
        self._collection = Collection(
            client,
            path,
            objects.kind,
            consequence=objects.consequence,
            selector=objects.selector,
            page=page,
            forbidden=forbidden,
        )
        self.listed = asyncio.Event()

    @property
    def live(self) -> bool:
        return self._collection.live

    @property
    def heard_at(self) -> float | None:
        return self._collection.heard_at

    async def follow(self) -> None:
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
