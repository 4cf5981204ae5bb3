"""Finds out at each look whether the limits of containers are in effect: gathers the facts that `in_effect` judges."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.escapes import is_watched
from gpushare_plugin.core.in_effect import (
    Effect,
    ProcessFacts,
    PromisedLimit,
    not_in_effect,
    of_processes,
    unknown,
    worst,
)
from gpushare_plugin.core.overuse import overuser
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import TOLERANCE, ContainerUsage, Process, Usage
from gpushare_plugin.gpus import containers
from gpushare_plugin.gpus.examined import Examiner
from gpushare_plugin.gpus.source import in_thread
from gpushare_plugin.kubelet.allocations.reader import HoldingsReader
from gpushare_plugin.mps.exchange import MpsStatus
from gpushare_plugin.node.pods.mps_clients import ClientWatch

PROCFS = Path("/proc")
"""Where the kernel shows the processes of the node."""


class Proof:
    """Compares the limits that containers were promised with what is in effect."""

    def __init__(self, holdings: HoldingsReader, mps: Callable[[], MpsStatus], procfs: Path = PROCFS) -> None:
        """Read from `holdings` what containers were given, and from `procfs` what the kernel shows of processes.

        `mps` returns the status of `gpushare mps`.
        """
        self._holdings = holdings
        self._mps = mps
        self._examiner = Examiner(procfs)
        self._clients = ClientWatch()

    async def of(self, usage: Usage, snapshot: Snapshot, seen_at: float) -> Usage:
        """Return the usage with the effect of every limit that an isolation enforces.

        `seen_at` is a value of `containers.now` before the look at the GPUs. On a node without an isolation, nothing is
        read.
        """
        limited = [each for each in usage.containers if _isolations(snapshot, each)]
        if not limited:
            return usage
        granted = await self._holdings.granted(is_watched)
        facts = await self._facts(limited, snapshot, seen_at)
        effects = {
            overuser(each): worst(
                _by_processes(PromisedLimit(name, _gpus(each, usage), granted.get(each.uid, ())), each, usage, facts)
                for name in _isolations(snapshot, each)
            )
            for each in limited
        }
        return replace(
            usage, containers=tuple(replace(each, effect=effects.get(overuser(each))) for each in usage.containers)
        )

    async def _facts(
        self, limited: Iterable[ContainerUsage], snapshot: Snapshot, seen_at: float
    ) -> Mapping[int, ProcessFacts]:
        """Return the facts about the processes of containers, by number."""
        processes = {
            process.pid: (process, _isolations(snapshot, each)) for each in limited for process in each.members
        }
        with_library = [(process, "hami-core" in names) for process, names in processes.values()]
        facts = await in_thread(lambda: self._examiner.examine(with_library, seen_at), "gpu-processes")
        self._clients.follow((process for process, names in processes.values() if "mps" in names), containers.now())
        status = self._mps()
        return {
            pid: self._clients.add(found, processes[pid][0], status) if "mps" in processes[pid][1] else found
            for pid, found in facts.items()
        }


def _isolations(snapshot: Snapshot, usage: ContainerUsage) -> Sequence[str]:
    """Return the names of the isolations that together limit a container; none without a limit."""
    name = "none" if usage.limit is None else snapshot.isolations.get(usage.gpu, "none")
    return [] if name == "none" else name.split("+")


def _gpus(usage: ContainerUsage, node: Usage) -> tuple[str, ...]:
    """Return the UUIDs of all GPUs of a container, in the order of the GPUs."""
    return tuple(each.gpu for each in node.containers if (each.uid, each.container) == (usage.uid, usage.container))


def _by_processes(
    promise: PromisedLimit, usage: ContainerUsage, node: Usage, facts: Mapping[int, ProcessFacts]
) -> Effect:
    """Return the effect of a limit by MPS or by HAMi's library, which is found out from the processes."""
    if usage.processes is None:
        gpu = node.of_gpu(usage.gpu)
        return unknown((gpu.unknown if gpu else None) or "the driver does not report the processes of the GPU")
    if promise.isolation == "hami-core" and usage.over:
        return not_in_effect("the processes of the container use more memory than the limit")
    found = [replace(facts[each.pid], over=_is_over(each, usage)) for each in usage.members if each.pid in facts]
    if usage.members and not found:
        return unknown("the processes of the container began or ended during the look")
    return of_processes(promise, found)


def _is_over(process: Process, usage: ContainerUsage) -> bool:
    """Return whether a process alone uses clearly more memory than the limit of its container."""
    return usage.limit is not None and (process.memory or 0) > usage.limit + TOLERANCE
