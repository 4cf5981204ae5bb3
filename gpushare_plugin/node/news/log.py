"""Writes news to the log."""

import time
from collections.abc import Callable
from functools import singledispatchmethod

import structlog

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.reported import Repeats
from gpushare_plugin.base.structs import replace
from gpushare_plugin.node.news import news

_log = structlog.get_logger()

REPEAT_EVENT = 60.0
"""Seconds before a repeated event of the driver is logged again; a program can cause the same XID many times."""

_MOST_EVENT_KINDS = 256
"""The most kinds of driver events counted apart: enough for usual events of all GPUs, a bound for a broken driver."""


class NewsLog:
    """Writes news to the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the time, in seconds, from `clock`."""
        self._clock = clock
        self._events = Repeats(REPEAT_EVENT, _MOST_EVENT_KINDS)

    @singledispatchmethod
    def log(self, item: news.NewsItem) -> None:
        """Write the log line of a news item; raises TypeError for a type of news without a line."""
        raise TypeError(f"found news that the log has no line for: {item!r}")

    # ------------------------------------------------------------------ GPUs

    @log.register
    def _(self, item: news.DriverSlow) -> None:
        _log.warning("driver_slow", seconds=item.seconds)

    @log.register
    def _(self, item: news.NoGpuYet) -> None:
        _log.warning("waiting_for_gpus", reason=item.reason)

    @log.register
    def _(self, item: news.GpusFound) -> None:
        found = item.inventory
        _log.info("node_detected", version=found.driver_version, cuda=found.cuda)
        for gpu in found.cards:
            _log.info(
                "gpu_detected",
                index=gpu.index,
                uuid=gpu.uuid,
                name=gpu.name,
                memory_mib=gpu.memory_mib or None,
                numa_node=gpu.numa_node,
                pci_bus_id=gpu.pci_bus_id or None,
                mig=gpu.mig_enabled,
            )

    @log.register
    def _(self, item: news.GpusChanged) -> None:
        _log.warning("gpus_changed", gpus=list(item.uuids))

    @log.register
    def _(self, item: news.CdiDevicesNamed) -> None:
        _log.info("cdi_devices", names=list(item.names))

    @log.register
    def _(self, item: news.GpuLeftOut) -> None:
        gpu = item.gpu
        _log.error("gpu_left_out", index=gpu.index, instance=gpu.number, uuid=gpu.uuid, reason=gpu.reason)

    @log.register
    def _(self, item: news.GpuEventReported) -> None:
        event = item.event
        repeated = self._events.untold(replace(event, detail=""), self._clock())
        if repeated is not None:
            _log.warning(
                "gpu_event",
                uuid=event.uuid,
                xid=event.xid,
                reason=event.detail,
                verdict=item.verdict,
                count=repeated,
            )

    @log.register
    def _(self, item: news.GpuUnhealthy) -> None:
        _log.error("gpu_unhealthy", uuid=item.uuid, reason=item.reason, until_reset=item.until_reset)

    @log.register
    def _(self, item: news.GpuRecovered) -> None:
        _log.info("gpu_healthy", uuid=item.uuid)

    @log.register
    def _(self, item: news.GpuCordoned) -> None:
        _log.warning("gpu_cordoned", uuid=item.uuid, reason=item.reason)

    @log.register
    def _(self, item: news.GpuUncordoned) -> None:
        _log.info("gpu_uncordoned", uuid=item.uuid)

    @log.register
    def _(self, item: news.GpuNotServedByMps) -> None:
        _log.warning("gpu_not_served_by_mps", uuid=item.uuid, reason=item.reason)

    @log.register
    def _(self, item: news.GpuServedByMps) -> None:
        _log.info("gpu_served_by_mps", uuid=item.uuid)

    @log.register
    def _(self, item: news.GpuNotLimited) -> None:
        _log.warning("gpu_not_limited", uuid=item.uuid, reason=item.reason)

    @log.register
    def _(self, item: news.GpuLimited) -> None:
        _log.info("gpu_limited", uuid=item.uuid)

    @log.register
    def _(self, item: news.GpuWaiting) -> None:
        _log.info("gpu_waiting", uuid=item.uuid, reason=item.reason)

    @log.register
    def _(self, item: news.GpuModeChanged) -> None:
        _log.info("gpu_mode_changed", uuid=item.uuid, isolation=item.isolation)

    @log.register
    def _(self, item: news.GpusGivenByClaim) -> None:
        _log.info("gpus_given_by_claim", gpus=list(item.uuids))

    @log.register
    def _(self, item: news.GpusLeftClaims) -> None:
        _log.info("gpus_left_claims", gpus=list(item.uuids))

    @log.register
    def _(self, item: news.GpusNotOfferedToClaims) -> None:
        consequence = "the scheduler does not see the GPUs that this node offers to claims as they are"
        _log.warning("gpus_not_offered_to_claims", reason=item.reason, consequence=consequence)

    @log.register
    def _(self, item: news.GpusOfferedToClaims) -> None:
        _log.info("gpus_offered_to_claims", count=item.count)

    @log.register
    def _(self, item: news.GpuIsolationNotFirst) -> None:
        _log.warning(
            "gpu_isolation_not_first",
            uuid=item.uuid,
            isolation=item.isolation,
            expected=item.wanted,
            reason=item.words,
        )

    @log.register
    def _(self, item: news.ResourceRetired) -> None:
        _log.info("resource_retired", resource=item.resource)

    @log.register
    def _(self, item: news.RequestRejected) -> None:
        _log.warning("request_rejected", call=item.call, resource=item.resource, reason=item.reason)

    @log.register
    def _(self, item: news.PodDrifted) -> None:
        _log.warning("pod_drifted", pod=item.pod, resource=item.resource, expected=item.promised, found=item.held)

    # ------------------------------------------------------------------ who uses what

    @log.register
    def _(self, item: news.PodOverLimit | news.PodEvicted) -> None:
        usage = item.usage
        _log.warning(
            "pod_evicted" if isinstance(item, news.PodEvicted) else "pod_over_limit",
            pod=usage.label,
            container=usage.container,
            uuid=usage.gpu,
            resource=usage.resource,
            used_mib=_mib(usage.used),
            limit_mib=_mib(usage.limit),
        )

    @log.register
    def _(self, item: news.PodWithinLimit) -> None:
        usage, used = item.usage, _mib(item.usage.used)
        _log.info("pod_within_limit", pod=usage.label, container=usage.container, uuid=usage.gpu, used_mib=used)

    @log.register
    def _(self, item: news.EvictionRefused) -> None:
        _log.error("eviction_refused", pod=item.usage.label, uuid=item.usage.gpu, reason=item.reason)

    @log.register
    def _(self, item: news.LimitNotInEffect) -> None:
        usage, reason = item.usage, item.usage.effect.reason if item.usage.effect else ""
        _log.warning(
            "limit_not_in_effect",
            pod=usage.label,
            container=usage.container,
            uuid=usage.gpu,
            resource=usage.resource,
            limit_mib=_mib(usage.limit),
            reason=reason,
        )

    @log.register
    def _(self, item: news.LimitInEffect) -> None:
        usage = item.usage
        _log.info("limit_in_effect", pod=usage.label, container=usage.container, uuid=usage.gpu)

    @log.register
    def _(self, item: news.StowawayFound) -> None:
        found = item.process
        _log.warning(
            "foreign_process_found",
            uuid=found.gpu,
            pid=found.pid,
            program=found.program,
            owner=found.whose,
            used_mib=_mib(found.memory),
        )

    @log.register
    def _(self, item: news.StowawayGone) -> None:
        gone = item.process
        _log.info("foreign_process_gone", uuid=gone.gpu, pid=gone.pid, program=gone.program, owner=gone.whose)

    @log.register
    def _(self, item: news.UsageUnknown) -> None:
        _log.info("usage_unknown", reason=item.reason)

    @log.register
    def _(self, _item: news.UsageKnown) -> None:
        _log.info("usage_known")

    # ------------------------------------------------------------------ configs

    @log.register
    def _(self, item: news.ConfigChanged) -> None:
        for line in item.changes:
            _log.info("config_changed", change=line)

    @log.register
    def _(self, item: news.ConfigRejected) -> None:
        for line in item.problems:
            _log.error("config_rejected", problem=line)

    @log.register
    def _(self, item: news.ConfigUnreadable) -> None:
        _log.error("config_unreadable", reason=item.reason)

    @log.register
    def _(self, _item: news.ConfigReadable) -> None:
        _log.info("config_readable")

    @log.register
    def _(self, _item: news.ConfigValidAgain) -> None:
        _log.info("config_valid_again")

    @log.register
    def _(self, item: news.ConfigDoesNotFitGpus) -> None:
        for line in item.problems:
            _log.error("config_does_not_fit_gpus", problem=line)

    @log.register
    def _(self, item: news.LabelConfigRejected) -> None:
        for line in item.problems:
            _log.error("config_for_label_rejected", problem=line)

    @log.register
    def _(self, item: news.MpsRootKept) -> None:
        _log.warning("mps_root_change_ignored", found=item.found, expected=item.in_effect)

    @log.register
    def _(self, item: news.DraDriverWaits) -> None:
        _log.warning("dra_driver_waits", found=item.found, served=item.served)

    @log.register
    def _(self, item: news.MpsProtocolKept) -> None:
        _log.warning("mps_protocol_change_ignored", found=item.found, expected=item.in_effect)

    @log.register
    def _(self, _item: news.ReloadRequested) -> None:
        _log.info("config_reloading")

    @log.register
    def _(self, item: news.Warned) -> None:
        _log.warning("warning", reason=item.notice)


def _mib(memory: int | None) -> int | None:
    return None if memory is None else memory // MIB
