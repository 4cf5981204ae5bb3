"""The composition root: leads where it can, follows the cluster while it leads, and answers kube-scheduler."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from gpushare_plugin.adapters.cluster.client import Client, Timing
from gpushare_plugin.adapters.cluster.lease import Election, LeaseTiming, in_each_term, own_identity
from gpushare_plugin.adapters.cluster.names import EXTENDER_LEASE
from gpushare_plugin.adapters.cluster.scheduling.endpoint import Endpoint, OwnPod
from gpushare_plugin.foundation.signals import until_stopped
from gpushare_plugin.foundation.tasks import background
from gpushare_plugin.model.account.annotations import PLACEMENT
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.search.policies import DEFAULT_POLICY
from gpushare_plugin.programs.scheduler.binder import Binder, BinderTiming
from gpushare_plugin.programs.scheduler.follower import AccountFollower
from gpushare_plugin.programs.scheduler.server import ExtenderServer
from gpushare_plugin.programs.scheduler.term import NotLeadingError, Term
from gpushare_plugin.programs.scheduler.tls.certificates import Certificates
from gpushare_plugin.telemetry.exposition import extender_exposition
from gpushare_plugin.telemetry.http import serve_http
from gpushare_plugin.telemetry.views import ExtenderView

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Extender:
    """All that one extender is made of.

    `address` is where kube-scheduler is answered, `probe_address` where the kubelet is, None for nowhere. The Lease is
    `lease` in `namespace`. `kubeconfig` says where the API server is; None in a pod of its cluster. `cordon_nodes` are
    nodes of Aliyun's plugin whose ConfigMaps cordon GPUs; `*` stands for all. The one that leads points `service`, a
    Service without a selector in the same namespace, at its own `pod`; None for no Service. `started` is called with
    the port, `listed` when the account of a term is complete.
    """

    address: str
    namespace: str
    probe_address: str | None = None
    certificates: Certificates | None = None
    policy: str = DEFAULT_POLICY
    kubeconfig: Path | None = None
    cordon_nodes: tuple[str, ...] = ()
    service: str | None = None
    pod: OwnPod | None = None
    lease: str = EXTENDER_LEASE
    lease_timing: LeaseTiming | None = None
    binder_timing: BinderTiming | None = None
    client_timing: Timing | None = None
    identity: str = field(default_factory=own_identity)
    started: Callable[[int], None] = lambda _port: None
    listed: Callable[[], None] = lambda: None


async def run(extender: Extender) -> None:
    """Answer kube-scheduler until SIGTERM or SIGINT; raises as `serve` does."""
    await until_stopped(serve(extender))


async def serve(extender: Extender) -> None:
    """Answer kube-scheduler until cancelled.

    Raises GpushareError where an address, a certificate or the kubeconfig cannot be used at the start.
    """
    async with Client(extender.kubeconfig, extender.client_timing) as client, background() as spawn:
        await client.configure()
        root = _Root(extender, client)
        server = ExtenderServer(root.term)
        async with server.listening(extender.address, extender.certificates) as port:
            if extender.probe_address is not None:
                address = extender.probe_address
                ready = root.problems if extender.service is None else root.problems_to_take_over
                metrics = partial(_metrics, root, server)
                spawn("probes", lambda: serve_http(address, live=list, ready=ready, metrics=metrics))
            if extender.service is not None and extender.pod is not None:
                endpoint = Endpoint(client, extender.namespace, extender.service, extender.pod, port=port)
                spawn("endpoint", lambda: endpoint.publish(lambda: not root.problems()))
            spawn("election", root.election.run)
            extender.started(port)
            # It ends before the election does, which leaves the Lease to another extender.
            async with background() as spawn_leading:
                await spawn_leading("leading", root.lead)


async def _metrics(root: "_Root", server: ExtenderServer, accept: str) -> tuple[str, bytes]:
    term = None if root.problems() else root.term()
    view = ExtenderView(
        leads=root.election.leads,
        ready=term is not None,
        nodes=len(term.account.nodes()) if term else 0,
        promises=term.binder.promises if term else 0,
        requests=server.requests,
        durations=server.calls.durations,
        certificate_end=server.certificate_end(),
        refusals=server.refusals,
        cache_age=root.cache_age,
        api_errors=root.api_errors,
    )
    return extender_exposition(view, accept)


class _Root:
    """Begins and ends terms as the Lease comes and goes."""

    def __init__(self, extender: Extender, client: Client) -> None:
        self._client = client
        self._policy = extender.policy
        self._identity = extender.identity
        self._cordon_nodes = extender.cordon_nodes
        self._binder_timing = extender.binder_timing
        self._listed = extender.listed
        self.election = Election(
            client,
            extender.namespace,
            extender.lease,
            extender.identity,
            annotations={PLACEMENT: extender.policy},
            timing=extender.lease_timing,
        )
        self._term: Term | None = None
        self._follower: AccountFollower | None = None

    def term(self) -> Term:
        """Return the term that is now; raises NotLeadingError where there is none."""
        problems = self.problems()
        if self._term is None or problems:
            raise NotLeadingError(problems[0])
        return self._term

    @property
    def api_errors(self) -> Mapping[str, int]:
        """The requests to the API server that failed, by kind."""
        return self._client.errors

    @property
    def cache_age(self) -> float | None:
        """How long ago the API server last confirmed what is known of the cluster; None without a term."""
        return self._follower.age if self._follower else None

    def problems(self) -> list[str]:
        """Return why kube-scheduler cannot be answered; nothing where it can."""
        number = self.election.term
        if not number:
            holder = self.election.holder
            late = "it could not renew its Lease in time; its log says why"
            why = late if holder == self._identity else f"{holder or 'nobody'} holds the Lease"
            return [f"this extender does not lead: {why}"]
        if self._term is None or self._term.number != number:
            missing = " and ".join(self._follower.missing if self._follower else ()) or "nodes and pods"
            return [f"this extender leads, and has not listed all {missing} yet"]
        return []

    def problems_to_take_over(self) -> list[str]:
        """Return why this extender can neither answer nor stand by, which takes to see another one lead."""
        return [] if self.election.holder and not self.election.leads else self.problems()

    async def lead(self) -> None:
        """Follow the cluster in each term; runs until cancelled. A defect ends the term, and another is begun."""
        await in_each_term(self.election.leading, self._serve_term)

    async def _serve_term(self, number: int) -> None:
        """Follow the cluster until this process does not lead in this term any more."""
        account = ClusterAccount(self._policy)
        follower = self._follower = AccountFollower(self._client, account, self._cordon_nodes)
        seconds_left = partial(self.election.seconds_left_in, number)
        binder = Binder(self._client, account, seconds_left, self._binder_timing)
        try:
            async with asyncio.TaskGroup() as group:
                for work in (
                    follower.follow(),
                    binder.confirm(),
                    self._answer(Term(number, account, binder), follower),
                ):
                    group.create_task(work)
        finally:
            self._term = self._follower = None
            await binder.close()

    async def _answer(self, term: Term, follower: AccountFollower) -> None:
        """Answer kube-scheduler from a term once its account is complete."""
        await follower.complete()
        self._listed()
        self._term = term
        _log.info("extender_ready", count=len(term.account.nodes()))
