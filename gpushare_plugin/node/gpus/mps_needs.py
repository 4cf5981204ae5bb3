"""The GPUs to be served by MPS on this node, and the GPUs that cannot be allocated because of MPS."""

from collections.abc import Callable, Mapping

from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.mps.exchange import MpsGpu, MpsRoot, MpsSettings
from gpushare_plugin.mps.link import MpsLink
from gpushare_plugin.node.gpus.state import drifted
from gpushare_plugin.node.news.news import GpuNotServedByMps, GpuServedByMps, News
from gpushare_plugin.sharing.isolation.layer import Mode
from gpushare_plugin.sharing.isolation.mps import UnderMps
from gpushare_plugin.sharing.plan import Plan

_NOT_RELEASED = "the MPS control daemon has not released it yet"


class NodeMps:
    """Requests MPS for the GPUs of a node, and knows the GPUs not served or not released by MPS."""

    def __init__(self, root: MpsRoot, changed: Callable[[], None], news: News) -> None:
        """Exchange files with `gpushare mps` in `root`; call `changed` after each change of the GPUs served by MPS."""
        self.link = MpsLink(root, changed)
        """The exchange with `gpushare mps`."""
        self._news = news
        self._wanted: MpsSettings | None = None
        self._published: frozenset[tuple[str, str]] = frozenset()

    def modes_before(self, plan: Plan) -> dict[str, Mode]:
        """Return the modes of GPUs before this process: only MPS leaves a trace, other modes count as unchanged."""
        under_mps = plan.mps.gpus
        modes: dict[str, Mode] = {uuid: mode for uuid, mode in plan.modes.items() if uuid not in under_mps}
        for gpu in self.link.wanted_before().gpus:
            before, now = UnderMps(gpu.memory_limit_mib), under_mps.get(gpu.uuid)
            modes[gpu.uuid] = now if now is not None and _much_the_same(before, now) else before
        return modes

    def want(self, plan: Plan, modes_in_use: Mapping[str, Mode], inventory: Inventory) -> None:
        """Request MPS for the GPUs with MPS as the mode in use, including GPUs with only retired units."""
        modes = {uuid: mode for uuid, mode in modes_in_use.items() if isinstance(mode, UnderMps)}
        present = [gpu.uuid for gpu in inventory.cards if gpu.uuid in modes]
        order = [*present, *sorted(modes.keys() - present)]  # an unresponsive GPU stays under MPS for its pods
        settings = MpsSettings(
            gpus=tuple(MpsGpu(uuid=uuid, memory_limit_mib=modes[uuid].memory_limit_mib) for uuid in order),
            active_thread_percentage=plan.mps.active_thread_percentage if modes else None,
        )
        if settings != self._wanted:
            self._wanted = settings
            self.link.want(settings)
        self._publish()

    @property
    def in_use(self) -> bool:
        """Whether GPUs should be, or still are, under MPS; before the first `want`, by an earlier plugin's request."""
        wanted = self.link.wanted_before() if self._wanted is None else self._wanted
        return bool(wanted.gpus or self.link.view.lingering)

    @property
    def unserved(self) -> dict[str, str]:
        """The reasons why MPS prevents the allocation of GPUs, by UUID."""
        return {
            uuid: f"not served by MPS: {reason}" for uuid, reason in self.link.view.unserved.items()
        } | dict.fromkeys(self.link.view.lingering, f"not released by MPS: {_NOT_RELEASED}")

    @property
    def _reasons(self) -> dict[str, str]:
        return dict(self.link.view.unserved) | dict.fromkeys(self.link.view.lingering, _NOT_RELEASED)

    def _publish(self) -> None:
        """Publish the GPUs not served by MPS, and the GPUs served again."""
        unserved = self._reasons
        before, self._published = self._published, frozenset(unserved.items())
        for uuid, reason in sorted(self._published - before):
            self._news.publish(GpuNotServedByMps(uuid, reason))
        for uuid in sorted({uuid for uuid, _ in before} - unserved.keys()):
            self._news.publish(GpuServedByMps(uuid))


def _much_the_same(before: UnderMps, now: UnderMps) -> bool:
    old, new = before.memory_limit_mib, now.memory_limit_mib
    return old == new or (old is not None and new is not None and drifted(old, new))
