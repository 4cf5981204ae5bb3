"""The GPUs to be served by MPS on this node, and the GPUs that cannot be allocated because of MPS."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.holding import Holdings
from gpushare_plugin.core.namespaces import WITH_NAMESPACES, ContainerNamespace, namespace_name
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.mps.exchange import MpsGpu, MpsNamespace, MpsRoot, MpsSettings
from gpushare_plugin.mps.link import MADE_WITHIN, MpsLink
from gpushare_plugin.node.gpus.namespaces import namespaces
from gpushare_plugin.node.gpus.state import within_drift
from gpushare_plugin.node.news.news import GpuNotServedByMps, GpuServedByMps, News
from gpushare_plugin.sharing.isolation.layer import Mode
from gpushare_plugin.sharing.isolation.mps import UnderMps
from gpushare_plugin.sharing.plan import Plan

_NOT_RELEASED = "the MPS control daemon has not released it yet"


class NodeMps:
    """Requests MPS for the GPUs of a node, and knows the GPUs not served or not released by MPS."""

    def __init__(
        self,
        root: MpsRoot,
        changed: Callable[[], None],
        news: News,
        holdings: Callable[[], Awaitable[Holdings | None]],
        resources: Callable[[], Mapping[str, Resource]],
    ) -> None:
        """Exchange files with `gpushare mps` in `root`; call `changed` after each change of the GPUs served by MPS.

        `holdings` returns what containers hold by the kubelet's record, None where the record cannot be read;
        `resources` returns the present resources of the node, by name.
        """
        self.link = MpsLink(root, changed)
        """The exchange with `gpushare mps`."""
        self._news = news
        self._holdings = holdings
        self._resources = resources
        self._wanted: MpsSettings | None = None
        self._before = MpsSettings()
        self._modes: dict[str, UnderMps] = {}
        self._waiting: dict[str, str] = {}
        self._namespaces: dict[str, ContainerNamespace] = {}
        self._of_claims: dict[str, ContainerNamespace] = {}
        self._starting: Counter[str] = Counter()
        self._reading = asyncio.Lock()
        self._begun = 0
        self._read = 0
        self._published: frozenset[tuple[str, str]] = frozenset()
        self.has_namespaces = asyncio.Event()
        """Set while containers need namespaces, or may need some."""

    def modes_before(self, plan: Plan) -> dict[str, Mode]:
        """Return the modes of GPUs before this process: only MPS leaves a trace, other modes count as unchanged."""
        under_mps = plan.mps.gpus
        modes: dict[str, Mode] = {uuid: mode for uuid, mode in plan.modes.items() if uuid not in under_mps}
        self._before = before = self.link.wanted_before(plan.mps.protocol)
        self._namespaces = {
            each.name: ContainerNamespace(each.name, each.memory_limit_mib, each.active_thread_percentage)
            for each in before.namespaces
            if each.name not in self._of_claims
        }
        for gpu in before.gpus:
            mode, now = UnderMps(gpu.memory_limit_mib, protocol=before.protocol), under_mps.get(gpu.uuid)
            modes[gpu.uuid] = now if now is not None and _much_the_same(mode, now) else mode
        return modes

    def want(self, plan: Plan, modes_in_use: Mapping[str, Mode], inventory: Inventory) -> None:
        """Request MPS for the GPUs with MPS as the mode in use, including GPUs with only retired units.

        A node has one MPS control daemon. While pods hold GPUs by another protocol than that of the config, the GPUs by
        the protocol of the config wait.
        """
        modes = {uuid: mode for uuid, mode in modes_in_use.items() if isinstance(mode, UnderMps)}
        planned = plan.mps.protocol
        protocol = next((mode.protocol for mode in modes.values() if mode.protocol != planned), planned)
        waits = f"pods of this node still use MPS with protocol {protocol}"
        self._waiting = {uuid: waits for uuid, mode in modes.items() if mode.protocol != protocol}
        self._modes = {uuid: mode for uuid, mode in modes.items() if mode.protocol == protocol}
        present = [gpu.uuid for gpu in inventory.cards if gpu.uuid in self._modes]
        order = [*present, *sorted(self._modes.keys() - present)]  # an unresponsive GPU stays under MPS for its pods
        percentage = plan.mps.active_thread_percentage if protocol == planned else self._before.active_thread_percentage
        self._request(
            gpus=tuple(MpsGpu(uuid=uuid, memory_limit_mib=self._modes[uuid].memory_limit_mib) for uuid in order),
            active_thread_percentage=percentage if modes else None,
            protocol=protocol if modes else 2,
        )
        self._publish()

    def _request(self, **changes: object) -> None:
        """Request the settings with `changes` and the present namespaces; a change of namespaces has a new revision."""
        before = self._wanted or self._before
        settings = before.model_copy(update=changes)
        with_them = settings.protocol == WITH_NAMESPACES
        needed = self._namespaces | self._of_claims
        namespaces = tuple(MpsNamespace.of(needed[name]) for name in sorted(needed)) if with_them else ()
        if namespaces != before.namespaces:
            revision = before.revision + 1
            settings = settings.model_copy(update={"namespaces": namespaces, "revision": revision})
        if with_them:
            self.has_namespaces.set()
        else:
            self.has_namespaces.clear()
        if settings != self._wanted:
            self._wanted = settings
            self.link.want(settings)

    # ------------------------------------------------------------------ namespaces of containers

    async def follow(self) -> None:
        """Request exactly the namespaces that containers need by what they hold now.

        Returns once a read of the kubelet's record that began after the call has succeeded: containers that start
        together share one. A record that cannot be read changes nothing.
        """
        enough = self._begun + 1
        # One at a time: an older record, read slowly, would take the namespaces away that a newer record has.
        async with self._reading:
            if self._read >= enough or not self.has_namespaces.is_set():
                return
            self._begun += 1
            held = await self._holdings()
            if held is None or not self.has_namespaces.is_set():
                return
            self._read = self._begun
            starting = {name: each for name, each in self._namespaces.items() if self._starting[name]}
            self._namespaces = starting | namespaces(held, self._resources(), self._modes, self._namespaces)
            self._request()

    async def before_start(self, resource: Resource, ids: Collection[str]) -> None:
        """Wait until the container with the units `ids` of `resource` has its namespace, at most MADE_WITHIN seconds.

        Raises PlacementError if the namespace is not there by then. Other units need no namespace.
        """
        under_mps = self.has_namespaces.is_set() and any(uuid in self._modes for uuid in resource.gpus_of(ids))
        if resource.role == "cores" or not under_mps:
            return
        name, clock = namespace_name(ids), asyncio.get_running_loop().time
        until = clock() + MADE_WITHIN
        self._starting[name] += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self.follow()
            if name not in self._namespaces:  # the record is older than the allocation, or cannot be read
                grant = resource.granted(ids)
                if grant is None or grant.namespace is None:
                    return
                self._namespaces[name] = grant.namespace
                self._request()
            reason = await self.link.until_made([self._namespaces[name]], until - clock())
        finally:
            self._starting.subtract([name])
            self._starting = +self._starting
        if reason:
            raise PlacementError(
                f"{resource.name}: {reason}; gpushare has waited for {MADE_WITHIN:g} s. The kubelet tries again"
            )

    def keep(self, namespaces: Iterable[ContainerNamespace]) -> None:
        """Request the namespaces that claims need, in place of those of the last call."""
        before, self._of_claims = self._of_claims, {each.name: each for each in namespaces}
        if self._of_claims != before and self._wanted is not None:
            self._request()

    @property
    def in_use(self) -> bool:
        """Whether GPUs should be, or still are, under MPS; before the first `want`, by an earlier plugin's request."""
        wanted = self.link.wanted_before() if self._wanted is None else self._wanted
        return bool(wanted.gpus or self.link.view.lingering)

    @property
    def unserved(self) -> dict[str, str]:
        """The reasons why MPS prevents the allocation of GPUs, by UUID."""
        view = self.link.view
        return {
            **{uuid: f"not served by MPS: {reason}" for uuid, reason in view.unserved.items()},
            **dict.fromkeys(view.lingering, f"not released by MPS: {_NOT_RELEASED}"),
            **{uuid: f"not served by MPS: {reason}" for uuid, reason in self._waiting.items()},
        }

    @property
    def _reasons(self) -> dict[str, str]:
        view = self.link.view
        return {**view.unserved, **dict.fromkeys(view.lingering, _NOT_RELEASED), **self._waiting}

    def _publish(self) -> None:
        """Publish the GPUs not served by MPS, and the GPUs served again."""
        unserved = self._reasons
        before, self._published = self._published, frozenset(unserved.items())
        for uuid, reason in sorted(self._published - before):
            self._news.publish(GpuNotServedByMps(uuid, reason))
        for uuid in sorted({uuid for uuid, _ in before} - unserved.keys()):
            self._news.publish(GpuServedByMps(uuid))


def _much_the_same(before: UnderMps, now: UnderMps) -> bool:
    if before.protocol != now.protocol:
        return False
    old, new = before.memory_limit_mib, now.memory_limit_mib
    return old == new or (old is not None and new is not None and within_drift(old, new))
