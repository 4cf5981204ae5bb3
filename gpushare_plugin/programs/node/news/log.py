"""News as lines of the log."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import singledispatchmethod

import structlog

from gpushare_plugin.model.repeats import Repeats
from gpushare_plugin.programs.node.news import news

_log = structlog.get_logger()

REPEAT_EVENT = 60.0
"""Seconds before an event is logged again that goes on and on, as a program's XIDs can."""

_MOST_EVENT_KINDS = 256
"""Kinds of events that are told apart for that: every card's usual ones, not every number a broken driver tells."""


class NewsLog:
    """Writes news to the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the time, in seconds, from `clock`."""
        self._clock = clock
        self._events = Repeats(REPEAT_EVENT, _MOST_EVENT_KINDS)

    @singledispatchmethod
    def log(self, item: news.NewsItem) -> None:
        """Write one thing that happened; raises TypeError for a type of news without a line."""
        raise TypeError(f"found news that the log has no line for: {item!r}")

    # ------------------------------------------------------------------ GPUs

    @log.register
    def _(self, item: news.DriverSlow) -> None:
        _log.warning("the driver has not answered yet, still waiting", seconds=item.seconds)

    @log.register
    def _(self, item: news.NoGpuYet) -> None:
        _log.warning("no GPU yet, looking again", reason=item.reason)

    @log.register
    def _(self, item: news.GpusFound) -> None:
        found = item.inventory
        _log.info("node", driver=found.driver_version, cuda=".".join(map(str, found.cuda_version)))
        for gpu in found.gpus:
            _log.info(
                "gpu",
                index=gpu.index,
                uuid=gpu.uuid,
                name=gpu.name,
                memory_mib=gpu.memory_mib,
                numa_node=gpu.numa_node,
                pci_bus_id=gpu.pci_bus_id,
                mig=gpu.mig_enabled,
            )

    @log.register
    def _(self, item: news.GpusChanged) -> None:
        _log.warning("the GPUs of this node changed", gpus=list(item.uuids))

    @log.register
    def _(self, item: news.GpuLeftOut) -> None:
        gpu = item.gpu
        _log.error("GPU left out", index=gpu.index, instance=gpu.number, uuid=gpu.uuid, reason=gpu.reason)

    @log.register
    def _(self, item: news.GpuEventReported) -> None:
        event = item.event
        repeated = self._events.untold(replace(event, detail=""), self._clock())
        if repeated is not None:
            _log.warning(
                "gpu event",
                uuid=event.uuid,
                xid=event.xid,
                detail=event.detail,
                verdict=item.verdict,
                repeated=repeated,
            )

    @log.register
    def _(self, item: news.GpuUnhealthy) -> None:
        _log.error("gpu unhealthy", uuid=item.uuid, reason=item.reason, until_reset=item.until_reset)

    @log.register
    def _(self, item: news.GpuRecovered) -> None:
        _log.info("gpu healthy again", uuid=item.uuid)

    @log.register
    def _(self, item: news.GpuCordoned) -> None:
        _log.warning("gpu taken out by hand", uuid=item.uuid, reason=item.reason)

    @log.register
    def _(self, item: news.GpuUncordoned) -> None:
        _log.info("gpu no longer taken out by hand", uuid=item.uuid)

    @log.register
    def _(self, item: news.GpuNotServedByMps) -> None:
        _log.warning("gpu not served by MPS", uuid=item.uuid, reason=item.reason)

    @log.register
    def _(self, item: news.GpuServedByMps) -> None:
        _log.info("gpu no longer waits for MPS", uuid=item.uuid)

    @log.register
    def _(self, item: news.GpuWaiting) -> None:
        _log.info("a GPU is not shared as the settings say yet", gpu=item.uuid, reason=item.reason)

    @log.register
    def _(self, item: news.ResourceRetired) -> None:
        _log.info("resource retired", resource=item.resource)

    # ------------------------------------------------------------------ configs

    @log.register
    def _(self, item: news.ConfigChanged) -> None:
        for line in item.changes:
            _log.info("setting changed", change=line)

    @log.register
    def _(self, item: news.ConfigRejected) -> None:
        for line in item.problems:
            _log.error("settings refused, the old ones stay in force", problem=line)

    @log.register
    def _(self, item: news.ConfigUnreadable) -> None:
        _log.error("settings cannot be read, the old ones stay in force", reason=item.reason)

    @log.register
    def _(self, item: news.ConfigUnsuitable) -> None:
        for line in item.problems:
            _log.error("the settings do not suit the GPUs that are there now", problem=line)

    @log.register
    def _(self, item: news.LabelConfigRejected) -> None:
        for line in item.problems:
            _log.error("the config of this node's label does not suit it; as without the label", problem=line)

    @log.register
    def _(self, item: news.MpsRootKept) -> None:
        _log.warning("flags.mpsRoot counts at start only", found=item.found, in_force=item.in_effect)

    @log.register
    def _(self, _item: news.ReloadRequested) -> None:
        _log.info("SIGHUP: reading the settings again")

    @log.register
    def _(self, item: news.Warned) -> None:
        _log.warning("notice", notice=item.notice)
