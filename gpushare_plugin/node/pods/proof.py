"""Finds out at each look whether the limits of containers are in effect: gathers the facts that `in_effect` judges."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.core.driver_limits import MemoryLimit, given_limit
from gpushare_plugin.core.effect import Effect, not_in_effect, unknown
from gpushare_plugin.core.escapes import Variables, driver_escapes
from gpushare_plugin.core.in_effect import DriverAnswer, ProcessFacts, PromisedLimit, by_driver, of_processes, together
from gpushare_plugin.core.namespaces import namespace_name
from gpushare_plugin.core.overuse import Overuser, overuser
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import TOLERANCE, ContainerUsage, Process, Usage
from gpushare_plugin.gpus import containers
from gpushare_plugin.gpus.examined import Examiner
from gpushare_plugin.gpus.host import CGROUP_ROOT, PROCFS
from gpushare_plugin.gpus.source import GpuSource, in_thread
from gpushare_plugin.kubelet.allocations.checkpoint import Granted
from gpushare_plugin.kubelet.allocations.reader import HoldingsReader
from gpushare_plugin.mps.exchange import MpsStatus
from gpushare_plugin.node.pods.mps_clients import ClientWatch


class _Evidence(Struct, frozen=True):
    """The evidence of a look."""

    granted: Granted
    """What containers were given."""
    namespaces: Mapping[tuple[str, str], frozenset[str]]
    """The MPS namespaces by the units of containers, by the UID of the pod and the container."""
    processes: Mapping[int, ProcessFacts]
    """The facts about processes, by number."""
    driver: Mapping[Overuser, DriverAnswer]
    """The answers of the driver about containers."""
    late: Callable[[str, str], float]
    """How late an agent set the limits of a container."""
    threads: int | None = None
    """The percentage of threads to which MPS holds every client; None without such a limit."""


class Proof:
    """Compares the limits that containers were promised with what is in effect."""

    def __init__(  # noqa: PLR0913 - what the evidence comes from
        self,
        holdings: HoldingsReader,
        source: GpuSource,
        mps: Callable[[], MpsStatus],
        *,
        late: Callable[[str, str], float] = lambda _container_id, _uuid: 0.0,
        cgroup_root: Path = CGROUP_ROOT,
        procfs: Path = PROCFS,
    ) -> None:
        """Read from `holdings` what containers were given, and from `source` the limits that the driver reports.

        `mps` returns the status of `gpushare mps`, and `late` the seconds that a container, by its ID, ran on the GPU
        with this UUID before `gpushare driver-limits` set its limits. The host's cgroups are mounted at `cgroup_root`,
        and the kernel shows processes in `procfs`.
        """
        self._holdings = holdings
        self._source = source
        self._mps = mps
        self._late = late
        self._cgroup_root = cgroup_root
        self._examiner = Examiner(procfs)
        self._clients = ClientWatch()

    async def of(self, usage: Usage, snapshot: Snapshot, seen_at: float) -> Usage:
        """Return the usage with the effect of every limit that an isolation enforces.

        The use of a container that the driver counts is known without the processes of the node. `seen_at` is a value
        of `containers.now` before the look at the GPUs. On a node without an isolation, nothing is read.
        """
        limited = {overuser(each): names for each in usage.containers if (names := _isolations(snapshot, each))}
        if not limited:
            return usage
        asked = [(each, limited[overuser(each)]) for each in usage.containers if overuser(each) in limited]
        claimed = [each for each, _ in asked if each.claimed]
        facts = _Evidence(
            _with_claims(await self._holdings.granted(), claimed),
            await self._namespaces(claimed),
            await self._processes(asked, seen_at),
            await self._driver(asked),
            self._late,
            self._mps().in_force.active_thread_percentage,
        )
        found = {overuser(each): _judged(each, names, usage, facts) for each, names in asked}
        return replace(usage, containers=tuple(found.get(overuser(each), each) for each in usage.containers))

    async def _processes(
        self, asked: Iterable[tuple[ContainerUsage, Sequence[str]]], seen_at: float
    ) -> Mapping[int, ProcessFacts]:
        """Return the facts about the processes of containers, by number."""
        processes = {process.pid: (process, names) for each, names in asked for process in each.members}
        with_library = [(process, "hami-core" in names) for process, names in processes.values()]
        facts = await in_thread(lambda: self._examiner.examine(with_library, seen_at), "gpu-processes")
        self._clients.follow((process for process, names in processes.values() if "mps" in names), containers.now())
        status = self._mps()
        return {
            pid: self._clients.add(found, processes[pid][0], status) if "mps" in processes[pid][1] else found
            for pid, found in facts.items()
        }

    async def _namespaces(self, claimed: Iterable[ContainerUsage]) -> Mapping[tuple[str, str], frozenset[str]]:
        """Return the MPS namespaces by the units or claims of containers; empty without clients with namespaces."""
        if all(each.namespace is None for each in self._mps().clients or ()):
            return {}
        found: defaultdict[tuple[str, str], frozenset[str]] = defaultdict(frozenset)
        for holding in await self._holdings.recorded() or ():
            found[holding.uid, holding.container] |= {namespace_name(holding.ids)}
        for usage in claimed:
            found[usage.uid, usage.container] |= {each.namespace for each in usage.claimed if each.namespace}
        return found

    async def _driver(self, asked: Iterable[tuple[ContainerUsage, Sequence[str]]]) -> Mapping[Overuser, DriverAnswer]:
        """Return what the driver answers about the containers that the driver is to limit."""
        by_the_driver = [each for each, names in asked if "driver" in names]
        if not by_the_driver:
            return {}
        from gpushare_plugin.node.pods.driver_proof import driver_answers  # noqa: PLC0415 - only with driver limits

        return await driver_answers(by_the_driver, self._source, self._cgroup_root)


def _with_claims(granted: Granted, claimed: Iterable[ContainerUsage]) -> Granted:
    """Return what containers were given, by units and by claims: of which the CDI specifications have the variables.

    Of containers that are not told apart, each request of their claims is what one of them was given.
    """
    found = {uid: dict(containers) for uid, containers in granted.items()}
    for usage in claimed:
        given = found.setdefault(usage.uid, {})
        for each in usage.claimed:
            container = usage.container or f"request {each.request}"
            given[container] = {**given.get(container, {}), **each.environment}
    return found


def _isolations(snapshot: Snapshot, usage: ContainerUsage) -> Sequence[str]:
    """Return the names of the isolations that together limit a container; none without a limit."""
    name = "none" if usage.limit is None else snapshot.isolations_in_use.get(usage.gpu, "none")
    return [] if name == "none" else name.split("+")


def _judged(usage: ContainerUsage, isolations: Sequence[str], node: Usage, facts: _Evidence) -> ContainerUsage:
    """Return the usage with the effect of the limit, and with the driver's own count where processes are unknown."""
    answer = facts.driver.get(overuser(usage))
    driven = None if answer is None else _driven(usage, answer, facts)
    others = [_by_processes(name, usage, node, facts) for name in isolations if name != "driver"]
    used = usage.used
    if used is None and answer is not None and driven is not None and driven.state != "not in effect":
        used = answer.used
    return replace(usage, used=used, effect=together(driven, others))


def _driven(usage: ContainerUsage, answer: DriverAnswer, facts: _Evidence) -> Effect:
    """Return the effect of a limit by the driver: by the present rule, or by what the container was given."""
    given = facts.granted.get(usage.uid, {}).get(usage.container, {})
    # By a rule that may have been another one. The limit of a claim is what the claim was given on this GPU.
    earlier = None if usage.claimed else given_limit(given)
    promised = [MemoryLimit(usage.limit, usage.guaranteed), *([] if earlier is None else [earlier])]
    others = any(who.gpu == usage.gpu and each.limit is not None for who, each in facts.driver.items())
    found = by_driver(promised, answer, others=others, late=facts.late(usage.container_id, usage.gpu))
    return found if found.state != "not in effect" else _explained(found, usage, given, facts)


def _explained(found: Effect, usage: ContainerUsage, given: Variables, facts: _Evidence) -> Effect:
    """Return a limit of the driver that is not in effect, with the variables by which a hook set another one."""
    environments = (facts.processes[each.pid].environment for each in usage.members if each.pid in facts.processes)
    ways = next((way for each in environments if each and (way := list(driver_escapes((), given, each)))), [])
    return not_in_effect(f"{found.reason}; a process has {' and '.join(ways)}") if ways else found


def _by_processes(isolation: str, usage: ContainerUsage, node: Usage, facts: _Evidence) -> Effect:
    """Return the effect of a limit by MPS or by HAMi's library, which is found out from the processes."""
    if usage.processes is None:
        gpu = node.of_gpu(usage.gpu)
        return unknown((gpu.unknown if gpu else None) or "the driver does not report the processes of the GPU")
    if isolation == "hami-core" and usage.over:
        return not_in_effect("the processes of the container use more memory than the limit")
    known = facts.processes
    found = [replace(known[each.pid], over=_is_over(each, usage)) for each in usage.members if each.pid in known]
    if usage.members and not found:
        return unknown("the processes of the container began or ended during the look")
    return of_processes(_promised(isolation, usage, node, facts), found)


def _promised(isolation: str, usage: ContainerUsage, node: Usage, facts: _Evidence) -> PromisedLimit:
    """Return what a container was promised on all its GPUs, in the order of the GPUs."""
    parts = [each for each in node.containers if (each.uid, each.container) == (usage.uid, usage.container)]
    limits = [each.limit for each in parts if each.limit is not None]
    names = [
        each
        for (uid, container), each in facts.namespaces.items()
        # Without its ID it is not known whether the container runs, or an init container for which the container waits.
        if uid == usage.uid and (not usage.container_id or usage.container in {"", container})
    ]
    return PromisedLimit(
        isolation,
        tuple(each.gpu for each in parts),
        tuple(facts.granted.get(usage.uid, {}).values()),
        # A namespace has one limit for all GPUs: that of the largest share.
        max(limits) if len(limits) == len(parts) and len(names) < 2 else None,  # noqa: PLR2004 - of one container
        frozenset().union(*names),
        facts.threads,
    )


def _is_over(process: Process, usage: ContainerUsage) -> bool:
    """Return whether a process alone uses clearly more memory than the limit of its container."""
    return usage.limit is not None and (process.memory or 0) > usage.limit + TOLERANCE
