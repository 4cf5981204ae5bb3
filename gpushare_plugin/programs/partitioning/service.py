"""The composition root: follows the cluster, leads where it can, and decides which slices are made while it leads."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpushare_plugin.adapters.cluster.client import Client, Timing
from gpushare_plugin.adapters.cluster.events.backlog import Backlog
from gpushare_plugin.adapters.cluster.events.event import Reporter
from gpushare_plugin.adapters.cluster.events.sender import EventSender
from gpushare_plugin.adapters.cluster.lease import Election, LeaseTiming, in_each_term, own_identity
from gpushare_plugin.adapters.cluster.names import PARTITIONER_LEASE, PATIENCE
from gpushare_plugin.foundation.signals.ending import until_stopped
from gpushare_plugin.foundation.structs import replace
from gpushare_plugin.foundation.tasks import background
from gpushare_plugin.model.account.annotations import PLACEMENT
from gpushare_plugin.model.choice.policies import DEFAULT_POLICY
from gpushare_plugin.model.partition.taking_back import DEFAULT_PATIENCE
from gpushare_plugin.programs.partitioning.counts import Counts
from gpushare_plugin.programs.partitioning.reports import Reports
from gpushare_plugin.programs.partitioning.rounds import Following, Rounds
from gpushare_plugin.telemetry.event_loop import Pauses
from gpushare_plugin.telemetry.exposition import partitioner_exposition
from gpushare_plugin.telemetry.http.probes import serve_http
from gpushare_plugin.telemetry.views import PartitionerView

COMPONENT = "gpushare-partitioner"
"""Who reports Events about pods."""

EVENTS_REMEDY = "grant create and patch of events (the chart's ClusterRole of the partitioner does)"


@dataclass(frozen=True, slots=True)
class Partitioner:
    """All that one partitioner is made of.

    `probe_address` is where the kubelet and Prometheus ask, None for nowhere. The Lease is `lease` in `namespace`.
    `kubeconfig` says where the API server is; None in a pod of its cluster. A pod has `patience` seconds to take the
    slice that was made for it. `started` is called with the port of the probes.
    """

    namespace: str
    probe_address: str | None = None
    policy: str = DEFAULT_POLICY
    patience: float = DEFAULT_PATIENCE
    kubeconfig: Path | None = None
    lease: str = PARTITIONER_LEASE
    lease_timing: LeaseTiming | None = None
    client_timing: Timing | None = None
    identity: str = field(default_factory=own_identity)
    started: Callable[[int], None] = lambda _port: None


async def run(partitioner: Partitioner) -> None:
    """Make slices until a signal ends it; raises as `serve` does."""
    await until_stopped(serve(partitioner))


async def serve(partitioner: Partitioner) -> None:
    """Make slices until cancelled; raises GpushareError where the address cannot be used."""
    async with Client(partitioner.kubeconfig, partitioner.client_timing) as client, background() as spawn:
        root, pauses = _Root(partitioner, client), Pauses()
        spawn("pauses", pauses.watch)
        if partitioner.probe_address is not None:
            address = partitioner.probe_address
            metrics = partial(_metrics, root, pauses)
            started = partitioner.started
            spawn(
                "probes", lambda: serve_http(address, live=list, ready=root.problems, metrics=metrics, started=started)
            )
        spawn("events", root.send_events)
        spawn("election", root.election.run)
        # It ends before the election does, which leaves the Lease to another partitioner.
        async with background() as spawn_leading:
            await spawn_leading("leading", root.lead)


async def _metrics(root: "_Root", pauses: Pauses, accept: str) -> tuple[str, bytes]:
    return partitioner_exposition(replace(root.view(), longest_pause=pauses.longest), accept)


class _Root:
    """Begins and ends rounds of decisions as the Lease comes and goes."""

    def __init__(self, partitioner: Partitioner, client: Client) -> None:
        self._client = client
        self._policy = partitioner.policy
        self._patience = partitioner.patience
        self._counts = Counts()
        self._backlog = Backlog()
        self.election = Election(
            client,
            partitioner.namespace,
            partitioner.lease,
            partitioner.identity,
            annotations={PLACEMENT: partitioner.policy, PATIENCE: f"{partitioner.patience:g}"},
            timing=partitioner.lease_timing,
        )
        self._following: Following | None = None
        self._rounds: Rounds | None = None

    def problems(self) -> list[str]:
        """Return why this partitioner can neither decide nor stand by; nothing where it can."""
        if not self.election.holder:
            return ["nobody is known to hold the Lease"]
        if missing := self._following.cluster.missing if self._following else ["nodes", "pods"]:
            does = "leads" if self.election.leads else "stands by"
            return [f"this partitioner {does}, and has not listed all {' and '.join(missing)} yet"]
        forbidden = self._rounds.forbidden if self._rounds else None
        return [f"what this partitioner decides cannot be written: {forbidden}"] if forbidden else []

    def view(self) -> PartitionerView:
        """Return what a scrape shows."""
        return self._counts.view(
            leads=self.election.leads,
            standing=self._rounds.standing if self._rounds else None,
            api_errors=self._client.errors,
        )

    async def send_events(self) -> None:
        """Send Events; runs until cancelled."""
        reporter = Reporter(COMPONENT, os.environ.get("NODE_NAME", ""))
        await EventSender(self._client, reporter, EVENTS_REMEDY).send(self._backlog)

    async def lead(self) -> None:
        """Follow the cluster, and decide in each term; runs until cancelled.

        A defect ends what is known with the term, since a list that begins again does not say what vanished before.
        """
        following = self._following = Following(self._client, self._policy)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(following.cluster.follow())
                group.create_task(self._decide(following))
        finally:
            self._following = None

    async def _decide(self, following: Following) -> None:
        """Decide in each term, once everything has been listed."""

        async def serve_term(number: int) -> None:
            seconds_left = partial(self.election.seconds_left_in, number)
            reports = Reports(self._backlog.put, self._counts)
            policy, patience = self._policy, self._patience
            self._rounds = Rounds(self._client, following, policy, patience, seconds_left, reports, self._counts)
            try:
                await self._rounds.run()
            finally:
                self._rounds = None

        await following.cluster.listed()
        await in_each_term(self.election.leading, serve_term)
