"""The composition root: follows the cluster, stands for election, and decides on slices while leading."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpushare_plugin.base.signals.ending import until_stopped
from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.tasks import background
from gpushare_plugin.core.policies import DEFAULT_POLICY
from gpushare_plugin.kube.client import Client, Timing
from gpushare_plugin.kube.events.event import Backlog, Reporter
from gpushare_plugin.kube.events.sender import EventSender
from gpushare_plugin.kube.lease import Election, LeaseTiming, in_each_term, own_identity
from gpushare_plugin.kube.names import PARTITIONER_LEASE, PATIENCE
from gpushare_plugin.ledger.annotations import PLACEMENT
from gpushare_plugin.observe.event_loop import Pauses
from gpushare_plugin.observe.exposition import partitioner_exposition
from gpushare_plugin.observe.http.probes import serve_http
from gpushare_plugin.observe.metrics.partitioner import PartitionerCounts, PartitionerView
from gpushare_plugin.partition.taking_back import DEFAULT_PATIENCE
from gpushare_plugin.partitioner.reports import Reports
from gpushare_plugin.partitioner.rounds import FollowedCluster, Rounds

COMPONENT = "gpushare-partitioner"
"""The reporter of Events about pods."""

EVENTS_REMEDY = "grant create and patch of events (the chart's ClusterRole of the partitioner does)"
"""The remedy if the API server forbids Events."""


@dataclass(frozen=True, slots=True)
class PartitionerSettings:
    """The settings of a partitioner."""

    namespace: str
    """The namespace of the Lease."""
    probe_address: str | None = None
    """The address for probes of the kubelet and scrapes of Prometheus, None for no address."""
    policy: str = DEFAULT_POLICY
    """The policy for pods and nodes that name no policy."""
    patience: float = DEFAULT_PATIENCE
    """Seconds for a pod to take the slices made for the pod."""
    kubeconfig: Path | None = None
    """The kubeconfig with the address of the API server, None in a pod of the cluster."""
    lease: str = PARTITIONER_LEASE
    """The name of the Lease."""
    lease_timing: LeaseTiming | None = None
    """The timing of the Lease, None for the defaults."""
    client_timing: Timing | None = None
    """The timing of requests to the API server, None for the defaults."""
    identity: str = field(default_factory=own_identity)
    """The name of this process in the Lease; no other process has the same name."""
    started: Callable[[int], None] = lambda _port: None
    """Called with the port of the probes."""


async def run(settings: PartitionerSettings) -> None:
    """Make slices until a signal ends the process; raises the errors of `serve`."""
    await until_stopped(serve(settings))


async def serve(settings: PartitionerSettings) -> None:
    """Make slices until cancelled; raises GpushareError if the probe address cannot be used."""
    async with Client(settings.kubeconfig, settings.client_timing) as client, background() as spawn:
        root, pauses = _ElectedPartitioner(settings, client), Pauses()
        spawn("pauses", pauses.watch)
        if settings.probe_address is not None:
            address = settings.probe_address
            metrics = partial(_metrics, root, pauses)
            started = settings.started
            spawn(
                "probes", lambda: serve_http(address, live=list, ready=root.problems, metrics=metrics, started=started)
            )
        spawn("events", root.send_events)
        spawn("election", root.election.run)
        # Leading ends before the election: the end of the election leaves the Lease to another partitioner.
        async with background() as spawn_leading:
            await spawn_leading("leading", root.lead)


async def _metrics(root: "_ElectedPartitioner", pauses: Pauses, accept: str) -> tuple[str, bytes]:
    return partitioner_exposition(replace(root.view(), longest_pause=pauses.longest), root.counts, accept)


class _ElectedPartitioner:
    """Begins and ends rounds of decisions with the terms of the Lease."""

    def __init__(self, settings: PartitionerSettings, client: Client) -> None:
        self._client = client
        self._policy = settings.policy
        self._patience = settings.patience
        self.counts = PartitionerCounts()
        self._backlog = Backlog()
        self.election = Election(
            client,
            settings.namespace,
            settings.lease,
            settings.identity,
            annotations={PLACEMENT: settings.policy, PATIENCE: f"{settings.patience:g}"},
            timing=settings.lease_timing,
        )
        self._following: FollowedCluster | None = None
        self._rounds: Rounds | None = None

    def problems(self) -> list[str]:
        """Return why this partitioner can neither decide nor stand by; empty without a problem."""
        if not self.election.holder:
            return ["nobody is known to hold the Lease"]
        if missing := self._following.cluster.missing if self._following else ["nodes", "pods"]:
            does = "leads" if self.election.leads else "stands by"
            return [f"this partitioner {does}, and has not listed all {' and '.join(missing)} yet"]
        forbidden = self._rounds.forbidden if self._rounds else None
        return [f"what this partitioner decides cannot be written: {forbidden}"] if forbidden else []

    def view(self) -> PartitionerView:
        """Return the figures of a scrape, without the pauses of the event loop."""
        leads = self.election.leads
        found = self._rounds.view if self._rounds and leads else PartitionerView()
        return replace(found, leads=leads, api_errors=self._client.errors)

    async def send_events(self) -> None:
        """Send Events; runs until cancelled."""
        reporter = Reporter(COMPONENT, os.environ.get("NODE_NAME", ""))
        await EventSender(self._client, reporter, EVENTS_REMEDY).send(self._backlog)

    async def lead(self) -> None:
        """Follow the cluster, and decide in every term; runs until cancelled.

        A defect ends the term and discards the known cluster: a new list does not show the objects that vanished before
        the list.
        """
        following = self._following = FollowedCluster(self._client, self._policy)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(following.cluster.follow())
                group.create_task(self._decide(following))
        finally:
            self._following = None

    async def _decide(self, following: FollowedCluster) -> None:
        """Decide in every term, after the first list of all Nodes and Pods."""

        async def serve_term(number: int) -> None:
            seconds_left = partial(self.election.seconds_left_in, number)
            reports = Reports(self._backlog.put, self.counts)
            policy, patience = self._policy, self._patience
            self._rounds = Rounds(self._client, following, policy, patience, seconds_left, reports, self.counts)
            try:
                await self._rounds.run()
            finally:
                self._rounds = None

        await following.cluster.listed()
        await in_each_term(self.election.leading, serve_term)
