"""What the driver answers about the limits of containers, read for the cgroups of containers in the host's tree."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpushare_plugin.core.in_effect import DriverAnswer
from gpushare_plugin.core.overuse import Overuser, overuser
from gpushare_plugin.core.usage import ContainerUsage
from gpushare_plugin.gpus.cgroups import Kubepods
from gpushare_plugin.gpus.memory_limits import (
    LimitError,
    LimitNotEnforcedError,
    LimitReading,
    NoLimitAnswerError,
    NoLimitFunctionError,
)
from gpushare_plugin.gpus.source import GpuSource, read_limits

_NO_ID = (
    "it is not known which cgroup the container has: only the API server has the IDs of containers (cluster.followPods "
    "of the chart)"
)


async def driver_answers(
    limited: Iterable[ContainerUsage], source: GpuSource, cgroup_root: Path
) -> Mapping[Overuser, DriverAnswer]:
    """Return what the driver answers about containers; `cgroup_root` is where the host's cgroups are mounted."""
    usages = {overuser(each): each for each in limited}
    cgroups = await asyncio.to_thread(_cgroups, usages, cgroup_root)
    readings = await read_limits(source, [(usages[who].gpu, cgroup) for who, cgroup in cgroups.items()])
    return {
        who: _answer(readings[each.gpu, cgroups[who]])
        if who in cgroups
        else DriverAnswer(reason=_no_cgroup(each, cgroup_root))
        for who, each in usages.items()
    }


def _cgroups(usages: Mapping[Overuser, ContainerUsage], root: Path) -> Mapping[Overuser, Path]:
    """Return the cgroups of containers, of those that are found."""
    kubepods = Kubepods.below(root)
    found = ((who, kubepods.container(each.uid, each.container_id)) for who, each in usages.items())
    return {who: path for who, path in found if path is not None}


def _no_cgroup(usage: ContainerUsage, root: Path) -> str:
    if not usage.container_id:
        return _NO_ID
    return (
        f"{root} has no cgroup of container {usage.container_id}: it has ended, or the host's tree of cgroups is not "
        "mounted there (--cgroup-root)"
    )


def _answer(reading: LimitReading | LimitError) -> DriverAnswer:
    if isinstance(reading, LimitReading):
        return DriverAnswer(reading.limit, reading.used)
    return DriverAnswer(
        reason=str(reading),
        unlimited=isinstance(reading, NoLimitAnswerError),
        unenforced=isinstance(reading, LimitNotEnforcedError | NoLimitFunctionError),
    )
