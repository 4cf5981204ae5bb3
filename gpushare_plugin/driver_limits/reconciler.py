"""The reconciler: compares the limits of all containers with the wanted limits, and corrects every difference.

Each GPU has a thread for the calls of the driver at a look, so that a GPU that does not answer delays no other.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import structlog

from gpushare_plugin.base.reported import Reported
from gpushare_plugin.core.driver_limits import MemoryLimit
from gpushare_plugin.driver_limits.exchange import (
    DriverLimitsRoot,
    DriverLimitsStatus,
    GpuStatus,
    LimitedContainer,
    LimitOrder,
)
from gpushare_plugin.driver_limits.gpu import NO_CGROUP, GpuLimits, LimitsPace
from gpushare_plugin.driver_limits.work import Job, work
from gpushare_plugin.gpus.cgroups import Kubepods, why_no_tree
from gpushare_plugin.gpus.exchange import DesiredFile, ExchangeError, StatusFile, read_message
from gpushare_plugin.gpus.memory_limits import MemoryLimits
from gpushare_plugin.gpus.source import in_thread

_log = structlog.get_logger()

SILENT = "a call of the driver has not returned; nothing else is tried on this GPU meanwhile. See dmesg of the node"
"""Why a GPU waits whose driver does not answer."""


class LimitsReconciler:
    """Sets the limits of containers as ordered in `wanted.json`, and reports the result in `status.json`."""

    def __init__(
        self, root: DriverLimitsRoot, limits: MemoryLimits, cgroup_root: Path, pace: LimitsPace | None = None
    ) -> None:
        """Set limits with `limits` on cgroups below `cgroup_root`; no other reconciler may use `root`."""
        self._limits = limits
        self._cgroup_root = cgroup_root
        self._pace = pace or LimitsPace()
        self._desired = DesiredFile(root.wanted, LimitOrder)
        self._file = StatusFile(root)
        self._gpus: dict[str, GpuLimits] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._silent: set[str] = set()
        self._trouble: str | None = None
        self._changes = Reported()
        self._before: tuple[LimitedContainer, ...] = ()
        self._now: Callable[[], float] = asyncio.get_running_loop().time
        self._remember(root)

    async def run(self) -> None:
        """Set limits until cancelled."""
        try:
            while True:
                try:
                    await self._step()
                except Exception:  # noqa: BLE001 - an error at one container must not end the work
                    _log.exception("driver_limits_step_failed", remedy="report this as a defect of gpushare")
                await asyncio.sleep(self._pace.look)
        finally:
            # A call that has begun may end, so that no limit is half set.
            if self._calls:
                await asyncio.wait(self._calls.values(), timeout=self._pace.patience)

    def _remember(self, root: DriverLimitsRoot) -> None:
        """Take over what an earlier process reported: when the limits of running containers began."""
        try:
            before = read_message(root.status, DriverLimitsStatus) or DriverLimitsStatus()
        except ExchangeError as error:
            _log.warning("driver_limits_file_unreadable", reason=str(error))
            return
        self._before = before.containers
        for container in before.containers:
            for each in container.gpus:
                self._gpu(each.uuid).remember(container.container_id, each)

    def _gpu(self, uuid: str) -> GpuLimits:
        return self._gpus.setdefault(uuid, GpuLimits(uuid, self._pace, self._now))

    # ------------------------------------------------------------------ one look

    async def _step(self) -> None:
        self._read()
        if self._desired.known:
            order = self._desired.message
            kubepods, cgroups = await in_thread(partial(_find, order, self._cgroup_root), "cgroups")
            self._trouble = self._look_for_pods(order, kubepods)
            self._want(order, cgroups)
            if begun := [
                self._begin(order, kubepods, gpu) for gpu in self._gpus.values() if gpu.uuid not in self._calls
            ]:
                await asyncio.wait(begun, timeout=self._pace.look)
            self._publish(order.gpus, tuple(self._containers(order)))
        else:
            self._publish((), self._before)

    def _look_for_pods(self, order: LimitOrder, kubepods: Kubepods) -> str | None:
        """Return why no limits can be set without the cgroups of pods; None with them, or while none are wanted.

        A root that is no tree of cgroups is told at once: also when limits are only wanted later.
        """
        reason = why_no_tree(self._cgroup_root)
        if not reason and order.gpus and not kubepods.tops:
            reason = _no_pods(self._cgroup_root)
        if self._changes.is_new("cgroups", reason or None) and reason:
            _log.warning("driver_limits_no_cgroups", reason=reason)
        return reason if reason and order.gpus else None

    def _read(self) -> None:
        """Read the order, and log changes of the GPUs."""
        desired = self._desired
        try:
            desired.read()
        except ExchangeError as error:
            _log.error("driver_limits_desired_unreadable", reason=str(error))
            return
        gpus, reason = list(desired.message.gpus), _why_waiting(desired)
        if not self._changes.is_new("desired", (gpus, reason)):
            return
        if reason is not None:
            _log.info("driver_limits_waiting", path=str(desired.file), reason=reason)
        else:
            _log.info("driver_limits_desired_changed", gpus=gpus)

    def _want(self, order: LimitOrder, cgroups: Mapping[str, Path | None]) -> None:
        wanted: defaultdict[str, dict[str, MemoryLimit]] = defaultdict(dict)
        for container in order.containers:
            for each in container.gpus:
                wanted[each.uuid][container.container_id] = each.limit
        ordered = {*order.gpus, *order.bursts}
        for uuid in {*ordered, *wanted}:
            self._gpu(uuid)
        for uuid, gpu in self._gpus.items():
            gpu.want(wanted[uuid], cgroups, bursts=uuid in order.bursts)
        self._gpus = {
            uuid: gpu for uuid, gpu in self._gpus.items() if uuid in ordered or not gpu.idle or uuid in self._calls
        }

    def _begin(self, order: LimitOrder, kubepods: Kubepods, gpu: GpuLimits) -> asyncio.Task[None]:
        job = gpu.job(self._cgroup_root, kubepods, offered=gpu.uuid in order.gpus)
        task = asyncio.create_task(self._do(gpu, job), name=f"limits of {gpu.uuid}")
        self._calls[gpu.uuid] = task
        return task

    async def _do(self, gpu: GpuLimits, job: Job) -> None:
        """Let a thread do the work on a GPU, and take in what came of the work."""
        overdue = partial(self._silent.add, job.uuid)
        try:
            report = await in_thread(
                partial(work, self._limits, job), f"limits-{job.uuid}", self._pace.patience, overdue
            )
        except Exception:  # noqa: BLE001 - a defect at one GPU must not end the work on others
            _log.exception("driver_limits_step_failed", uuid=job.uuid, remedy="report this as a defect of gpushare")
        else:
            gpu.take(report)
        finally:
            del self._calls[job.uuid]
            self._silent.discard(job.uuid)

    # ------------------------------------------------------------------ what is reported

    def _publish(self, uuids: Iterable[str], containers: tuple[LimitedContainer, ...]) -> None:
        gpus = tuple(self._gpu_status(uuid) for uuid in uuids)
        status = DriverLimitsStatus(gpus=gpus, containers=containers, trouble=self._desired.problem or self._trouble)
        waiting = any(each.reason not in {None, NO_CGROUP} for container in containers for each in container.gpus)
        ready = status.trouble is None and not waiting and all(gpu.proven and gpu.reason is None for gpu in gpus)
        try:
            self._file.write(status, ready=ready)
        except (ExchangeError, OSError) as error:
            if self._changes.is_new("status", str(error)):
                _log.error("driver_limits_status_not_written", reason=str(error))

    def _gpu_status(self, uuid: str) -> GpuStatus:
        silent = uuid in self._silent
        if self._changes.is_new(uuid, silent) and silent:
            _log.error("driver_silent", uuid=uuid, reason=SILENT)
        status = self._gpus[uuid].status
        return status.model_copy(update={"reason": SILENT}) if silent else status

    def _containers(self, order: LimitOrder) -> Iterator[LimitedContainer]:
        for each in order.containers:
            gpus = tuple(self._gpus[limit.uuid].limit_status(each.container_id) for limit in each.gpus)
            yield LimitedContainer(pod_uid=each.pod_uid, container_id=each.container_id, gpus=gpus)


def _find(order: LimitOrder, root: Path) -> tuple[Kubepods, dict[str, Path | None]]:
    """Return the cgroups of all pods, and the cgroup of each container by the ID of the container."""
    kubepods = Kubepods.below(root)
    return kubepods, {
        each.container_id: kubepods.container(each.pod_uid, each.container_id) for each in order.containers
    }


def _why_waiting(desired: DesiredFile[LimitOrder]) -> str | None:
    """Return why no limits are wanted, as far as that is known; None where limits were ordered."""
    if desired.missing:
        return (
            "gpushare run has not ordered limits yet, which it does with --driver-limits-agent=true, the same "
            "--driver-limits-root, and a config that has driver as an isolation"
        )
    order = desired.message
    if order.gpus or order.missing is None:
        return None
    return f"gpushare run wants no limits on this node, because it found that {order.missing}"


def _no_pods(root: Path) -> str:
    return (
        f"{root} has no cgroups of pods (kubepods or kubepods.slice): mount the host's tree of cgroups of version 2 "
        "there, or name with --cgroup-root where the kubelet's --cgroup-root leads"
    )
