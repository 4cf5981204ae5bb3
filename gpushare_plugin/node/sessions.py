"""One session for each resource: starting sessions, replacing the units of sessions, ending sessions."""

import asyncio
from collections.abc import Mapping
from functools import partial
from weakref import WeakValueDictionary

from gpushare_plugin.base.tasks import Spawn, end
from gpushare_plugin.core.pairing import Pairing
from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.kubelet.allocations.checkpoint import CHECKPOINT
from gpushare_plugin.kubelet.device_plugin.directory import PluginDirectory
from gpushare_plugin.kubelet.device_plugin.service import Allocated, BeforeStart
from gpushare_plugin.kubelet.device_plugin.session import Session
from gpushare_plugin.kubelet.device_plugin.steering import Steering
from gpushare_plugin.node.news.news import News, RequestRejected, ResourceRetired


class Sessions:
    """The sessions of the offered resources."""

    def __init__(  # noqa: PLR0913 - everything that sessions depend on
        self,
        directory: PluginDirectory,
        spawn: Spawn,
        news: News,
        steering: Steering | None = None,
        *,
        recent: RecentAllocations | None = None,
        allocated: Allocated = lambda _resource, _ids: None,
        before_start: BeforeStart | None = None,
    ) -> None:
        """Serve on sockets in `directory`; `spawn` runs the sessions, `steering` knows the promises to pods.

        `recent` remembers the allocations of all sessions. `allocated` is called after each granted `Allocate` call,
        `before_start` before each start of a container.
        """
        self._allocated = allocated
        self._before_start = before_start
        self._recent = recent or RecentAllocations()
        self._directory = directory
        self._steering = steering
        self._pairing = Pairing(lambda: directory.identity(CHECKPOINT))
        self._spawn = spawn
        self._news = news
        self._by_resource: dict[str, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def by_resource(self) -> Mapping[str, Session]:
        """The sessions, by the name of the resource."""
        return self._by_resource

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """The tasks of the sessions, including ending tasks."""
        return tuple(self._tasks)

    def serve(self, resources: Mapping[str, Resource]) -> None:
        """Serve exactly these resources, by name; running sessions send changed resources to the kubelet."""
        for name, resource in resources.items():
            if name in self._by_resource:
                self._by_resource[name].replace(resource)
            else:
                self._start(self._session(resource))
        for name in self._by_resource.keys() - resources.keys():
            self._news.publish(ResourceRetired(name))
            del self._by_resource[name]
            end(self._running.pop(name))

    def refresh_record(self) -> None:
        """Send a device list again: the kubelet then writes a new checkpoint, without ended pods."""
        for session in self._by_resource.values():
            if session.streaming:
                session.resend()
                return

    def _session(self, resource: Resource) -> Session:
        def refused(call: str, name: str, reason: str) -> None:
            self._news.publish(RequestRejected(call, name, reason))

        return Session(
            resource,
            self._directory,
            steering=self._steering,
            pairing=self._pairing,
            refused=refused,
            recent=self._recent,
            allocated=self._allocated,
            before_start=self._before_start,
        )

    def _start(self, session: Session) -> None:
        name = session.resource.name
        turn = self._turns.setdefault(session.socket_name, asyncio.Lock())
        task = self._spawn(f"session {name}", partial(self._in_turn, turn, session))
        self._by_resource[name], self._running[name] = session, task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: session.tried.set())

    @staticmethod
    async def _in_turn(turn: asyncio.Lock, session: Session) -> None:
        # Two servers must never share a socket path: the previous session of this name has to end first.
        async with turn:
            await session.run()
