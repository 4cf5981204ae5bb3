"""Reads the use of GPUs from the metrics of the daemons of those nodes that an open page shows, and of no others.

A daemon that does not answer, or answers with anything, costs bounded time and memory, and the use of its own node.
"""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import aiohttp
import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube.client import Client, ClusterError, read_within
from gpushare_plugin.kube.whole_cluster.daemons import DaemonPod, by_node
from gpushare_plugin.observe.metrics.scraped import UnreadableMetricsError, usage_of
from gpushare_plugin.web.following import FollowedPicture
from gpushare_plugin.web.interest import LASTING
from gpushare_plugin.web.use import UseReading

EVERY = 15.0
"""Seconds between two readings of a node at least."""
AFTER_FAILURE = 60.0
"""Seconds from a reading that failed to the next one of the node."""
IN_TIME = 4.0
"""Seconds for the answer of a daemon: less than an answer of the daemon takes at most."""
AT_A_TIME = 16
"""The most daemons that are asked at the same time, and in a second, for once a second those are asked that are due.

With 40 containers each, their answers take a twelfth of a core to decode.
"""
MOST_BYTES = 4 * 1024 * 1024
"""The most bytes of an answer: a page about 1000 containers has a quarter of that."""
OLDEST = 60.0
"""The age in seconds of a daemon's own look at its GPUs beyond which the use is unknown."""
_PAUSE = 1.0
"""Seconds between two looks at what open pages show."""
_UNREAD = UseReading(problem="the metrics of the daemon were not read yet")
_NO_DAEMON = UseReading(problem="no daemon of this node serves metrics in the namespace of --daemon-metrics")

Ask = Callable[[DaemonPod], Awaitable[bytes]]
"""Returns the metrics of a daemon; raises UnansweredError, also for more than MOST_BYTES."""

_log = structlog.get_logger()


def _now() -> float:
    return asyncio.get_running_loop().time()


class UnansweredError(GpushareError):
    """A daemon did not answer as expected; the message says how, without names."""


def by_api_server(client: Client) -> Ask:
    """Return what asks a daemon through the API server, which takes the right to get pods/proxy.

    Source of the path: Kubernetes' documentation, "Access Services Running on Clusters" (proxy verb, pods).
    """

    async def ask(pod: DaemonPod) -> bytes:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{pod.port}/proxy/metrics"
        try:
            return await client.page(path, MOST_BYTES)
        except ClusterError as error:
            raise UnansweredError(_words_of(error)) from error

    return ask


def _words_of(error: ClusterError) -> str:
    if error.lacks_right:
        return "this needs the right to get pods/proxy in the namespace of --daemon-metrics"
    if error.status == HTTPStatus.OK:
        return f"the daemon's answer has more than {MOST_BYTES} bytes"
    return f"the daemon did not answer through the API server (HTTP status {error.status or 'unknown'})"


def directly(session: aiohttp.ClientSession) -> Ask:
    """Return what asks a daemon at the address of its pod, which takes no right."""

    async def ask(pod: DaemonPod) -> bytes:
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        address, headers = f"http://{host}:{pod.port}/metrics", {"Accept-Encoding": "identity"}
        try:
            async with session.get(address, headers=headers, allow_redirects=False) as response:
                if response.status != HTTPStatus.OK:
                    raise UnansweredError(f"the daemon answered with HTTP status {response.status}")
                found = await read_within(response, MOST_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            raise UnansweredError("the daemon cannot be reached at the address of its pod") from error
        if found is None:
            raise UnansweredError(f"the daemon's answer has more than {MOST_BYTES} bytes")
        return found

    return ask


def session_for_daemons() -> aiohttp.ClientSession:
    """Return a session for `directly`; what daemons compress is not decompressed."""
    return aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))


async def follow_use(followed: FollowedPicture, namespace: str, ask: Ask) -> None:
    """Keep the use that open pages show until cancelled; without a namespace, nothing is read."""
    if namespace:
        await DaemonMetrics(followed, namespace, ask).follow()


class DaemonMetrics:
    """Keeps the use that open pages show like the daemons of nodes say it."""

    def __init__(self, followed: FollowedPicture, namespace: str, ask: Ask) -> None:
        """Read daemons of a namespace, in which only those may create pods who may say what is used."""
        self._followed, self._namespace, self._ask = followed, namespace, ask
        self._next: dict[str, float] = {}
        """The time before which each node is not read again."""
        self._known: dict[str, float] = {}
        """The time of the last reading of each node that was read."""
        self._reading: set[str] = set()
        """The nodes that are being read."""
        self._found: dict[str, UseReading] = {}
        self._decoding = asyncio.Lock()
        followed.picture.unread = _UNREAD

    async def follow(self) -> None:
        """Read what open pages show until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(_PAUSE)
                self._look(group, _now())

    def _look(self, group: asyncio.TaskGroup, now: float) -> None:
        shown = self._shown(now)
        self._start(group, shown, now)
        for node, last in list(self._known.items()):
            if node not in shown and now - last > LASTING:
                del self._known[node]
                self._found.setdefault(node, _UNREAD)
        if self._found:
            found, self._found = self._found, {}
            self._followed.take_readings(found)

    def _shown(self, now: float) -> set[str]:
        """Return the nodes whose use an open page shows."""
        interests = self._followed.interests.now(now)
        return {name for name in self._followed.picture.nodes if any(each.takes(name) for each in interests)}

    def _start(self, group: asyncio.TaskGroup, shown: set[str], now: float) -> None:
        """Begin to read the nodes that wait longest for that."""
        self._next = {node: at for node, at in self._next.items() if at > now}
        due = sorted(shown - self._next.keys() - self._reading, key=lambda node: self._known.get(node, 0.0))
        daemons = by_node(self._followed.daemons.values(), self._namespace) if due else {}
        for node in due[: AT_A_TIME - len(self._reading)]:
            self._next[node] = now + EVERY
            self._reading.add(node)
            group.create_task(self._read(node, daemons.get(node)))

    async def _read(self, node: str, daemon: DaemonPod | None) -> None:
        try:
            found = _NO_DAEMON if daemon is None else await self._answer(daemon)
        except Exception:  # noqa: BLE001 - one node must not cost the others
            _log.exception("metrics_of_node_failed", node=node, remedy="report this as a defect of gpushare")
            found = UseReading(problem="the metrics could not be read; the log says why")
        now = _now()
        self._reading.remove(node)
        self._found[node] = found
        self._known[node] = now
        if found.usage is None:
            self._next[node] = now + AFTER_FAILURE

    async def _answer(self, pod: DaemonPod) -> UseReading:
        try:
            async with asyncio.timeout(IN_TIME):
                page = await self._ask(pod)
        except TimeoutError:
            return UseReading(problem=f"the daemon did not answer within {IN_TIME:g} s")
        except UnansweredError as error:
            return UseReading(problem=str(error))
        try:
            async with self._decoding:
                usage = await asyncio.to_thread(usage_of, page)
        except UnreadableMetricsError:
            return UseReading(problem="the daemon's answer is no page of metrics")
        if usage.age > OLDEST:
            return UseReading(problem=f"the daemon looked at its GPUs {usage.age:.0f} s ago")
        return UseReading(replace(usage, age=0.0))
