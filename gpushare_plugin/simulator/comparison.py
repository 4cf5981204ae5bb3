"""Compares policies on the same pods: as a report, in several processes."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.observe.parts import Part
from gpushare_plugin.simulator.churn import Churned, churn
from gpushare_plugin.simulator.churn import expected_pods as expected_with_churn
from gpushare_plugin.simulator.filling import AllocatedAt, Filled, expected_pods, fill
from gpushare_plugin.simulator.mean import mean
from gpushare_plugin.simulator.processes import in_processes
from gpushare_plugin.simulator.scenario import Scenario
from gpushare_plugin.simulator.trace import MOST_PODS
from gpushare_plugin.simulator.unplaceable import in_words, unplaceable

Mode = Literal["fill", "churn"]
"""Whether pods stay until the cluster is full, or come and go."""


class Run(NamedTuple):
    """One policy with the pods of one seed."""

    policy: str
    """The name of the policy."""
    seed: int
    """The seed, which decides which pods come, and in which order."""


class SeedResult(Part, frozen=True, kw_only=True):
    """What came of the pods of one seed."""

    seed: int
    """The seed."""
    filled: tuple[Filled, ...] = ()
    """The cluster at each level of demand; empty if pods came and went."""
    curve: tuple[AllocatedAt, ...] = ()
    """What was allocated after every 5 % of demand; empty if pods came and went."""
    churned: Churned | None = None
    """What came of pods that came and went; None if pods stayed."""


class PolicyResult(Part, frozen=True, kw_only=True):
    """What came of the pods under one policy."""

    policy: str
    """The name of the policy."""
    filled: tuple[Filled, ...] = ()
    """The mean over the seeds, as in `SeedResult`."""
    curve: tuple[AllocatedAt, ...] = ()
    """The mean over the seeds, as in `SeedResult`."""
    churned: Churned | None = None
    """The mean over the seeds, as in `SeedResult`."""
    seeds: tuple[SeedResult, ...]
    """What came of the pods of each seed."""


class SimulationReport(Part, frozen=True, kw_only=True):
    """What came of the pods under each policy."""

    source: str
    """Where nodes and pods are from, as a sentence without a full stop."""
    changes: tuple[str, ...] = ()
    """What was changed of nodes and pods, each as a sentence without a full stop."""
    nodes: int
    """The number of nodes."""
    gpus: int
    """The number of GPUs."""
    pods: int
    """The number of pods in the trace."""
    demand: float
    """What the pods of the trace ask of GPUs, in GPUs."""
    unplaceable: str | None = None
    """Which pods fit no node, not even a node without other pods; None if each pod fits a node."""
    mode: Mode
    """Whether pods stayed, or came and went."""
    load: float | None = None
    """The demand of pods that come and go, in percent of all GPUs; None if pods stayed."""
    policies: tuple[PolicyResult, ...]
    """What came of the pods under each policy, in the order that was asked for."""


class Simulation(NamedTuple):
    """What is simulated."""

    scenario: Scenario
    """The nodes and pods."""
    policies: Sequence[str]
    """The names of the policies."""
    mode: Mode
    """Whether pods stay, or come and go."""
    load: float
    """The demand of pods that come and go, in percent of all GPUs."""
    seeds: int
    """The number of seeds, from 1 on."""

    @property
    def expected_pods(self) -> float:
        """How many pods come in a run, on average."""
        trace = self.scenario.trace
        return expected_pods(trace) if self.mode == "fill" else expected_with_churn(trace, self.load)

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [Run(policy, seed) for seed in range(1, self.seeds + 1) for policy in self.policies]

    def result(self, run: Run) -> SeedResult:
        """Return what comes of one run; the same for the same run, always."""
        if self.mode == "fill":
            return SeedResult(seed=run.seed, **fill(self.scenario.trace, run.policy, run.seed)._asdict())
        return SeedResult(seed=run.seed, churned=churn(self.scenario.trace, run.policy, run.seed, self.load))


def compare(simulation: Simulation, processes: int, done: Callable[[], None]) -> SimulationReport:
    """Return what comes of the pods of each seed under each policy; calls `done` after each run.

    Raises GpushareError for more pods than can be simulated, and if memory runs out or a process is killed: means over
    other seeds could not be compared.
    """
    if simulation.expected_pods > MOST_PODS:
        raise GpushareError(
            f"a run would have about {simulation.expected_pods:,.0f} pods, expected {MOST_PODS:,} at most; simulate "
            "fewer nodes, or fewer pods without GPUs or with small shares"
        )
    trace, runs = simulation.scenario.trace, simulation.runs
    results: dict[str, list[SeedResult]] = {policy: [] for policy in simulation.policies}
    for run, result in zip(runs, in_processes(simulation.result, runs, processes), strict=True):
        results[run.policy].append(result)
        done()
    return SimulationReport(
        source=simulation.scenario.source,
        changes=tuple(simulation.scenario.changes),
        nodes=len(trace.nodes),
        gpus=trace.gpus,
        pods=len(trace.pods),
        demand=trace.demand,
        unplaceable=in_words(never) if (never := unplaceable(trace)) else None,
        mode=simulation.mode,
        load=simulation.load if simulation.mode == "churn" else None,
        policies=tuple(_policy_result(policy, each) for policy, each in results.items()),
    )


def _policy_result(policy: str, seeds: Sequence[SeedResult]) -> PolicyResult:
    means = mean(seeds)
    return PolicyResult(
        policy=policy, filled=means.filled, curve=means.curve, churned=means.churned, seeds=tuple(seeds)
    )
