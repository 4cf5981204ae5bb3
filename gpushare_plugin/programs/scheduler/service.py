"""The composition root: follows the cluster, leads where it can, and answers kube-scheduler while it leads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from gpushare_plugin.adapters.cluster.client import Client, Timing
from gpushare_plugin.adapters.cluster.identity import ObjectIdentity
from gpushare_plugin.adapters.cluster.lease import Election, LeaseTiming, in_each_term, own_identity
from gpushare_plugin.adapters.cluster.names import ANYONE, CLIENTS, EXTENDER_LEASE, VERIFIED, WHAT_ANYONE_CAN_DO
from gpushare_plugin.adapters.cluster.scheduling.endpoint import Endpoint
from gpushare_plugin.foundation.signals.ending import until_stopped
from gpushare_plugin.foundation.tasks import background
from gpushare_plugin.model.account.annotations import PLACEMENT
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.choice.policies import DEFAULT_POLICY
from gpushare_plugin.programs.scheduler.binder import Binder, BinderTiming
from gpushare_plugin.programs.scheduler.follower import AccountFollower
from gpushare_plugin.programs.scheduler.http.server import ExtenderServer
from gpushare_plugin.programs.scheduler.term import LeaderTerm, NotLeadingError
from gpushare_plugin.programs.scheduler.tls.certificates import Certificates
from gpushare_plugin.programs.scheduler.tls.own import CertificateKeeper, OwnCertificates
from gpushare_plugin.telemetry.event_loop import Pauses
from gpushare_plugin.telemetry.exposition import extender_exposition
from gpushare_plugin.telemetry.http.probes import serve_http
from gpushare_plugin.telemetry.metrics.extender import ExtenderView

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Extender:
    """All that one extender is made of.

    `address` is where kube-scheduler is answered, `probe_address` where the kubelet is, None for nowhere.
    `certificates` are files, or made by the extender; None for plain HTTP. The Lease is `lease` in `namespace`.
    `kubeconfig` says where the API server is; None in a pod of its cluster. `cordon_nodes` are nodes of Aliyun's
    plugin whose ConfigMaps cordon GPUs; `*` stands for all. Only pods of `scheduler_names` are bound,
    where there is none those of any scheduler. The one that leads points `service`, a Service without a selector in the
    same namespace, at its own `pod`, whose IP address is `pod_address`; None for no Service. `started` is called with
    the port, `listed` when the account is complete for the first time.
    """

    address: str
    namespace: str
    probe_address: str | None = None
    certificates: Certificates | OwnCertificates | None = None
    policy: str = DEFAULT_POLICY
    kubeconfig: Path | None = None
    cordon_nodes: tuple[str, ...] = ()
    scheduler_names: tuple[str, ...] = ()
    service: str | None = None
    pod: ObjectIdentity | None = None
    pod_address: str = ""
    lease: str = EXTENDER_LEASE
    lease_timing: LeaseTiming | None = None
    binder_timing: BinderTiming | None = None
    client_timing: Timing | None = None
    identity: str = field(default_factory=own_identity)
    started: Callable[[int], None] = lambda _port: None
    listed: Callable[[], None] = lambda: None

    @property
    def verifies_clients(self) -> bool:
        """Whether only clients with a certificate are answered."""
        of = self.certificates
        return isinstance(of, OwnCertificates) or (of is not None and of.client_authority is not None)


async def run(extender: Extender) -> None:
    """Answer kube-scheduler until a signal ends it; raises as `serve` does."""
    await until_stopped(serve(extender))


async def serve(extender: Extender) -> None:
    """Answer kube-scheduler until cancelled.

    Raises GpushareError where an address, a certificate or the kubeconfig cannot be used at the start.
    """
    async with Client(extender.kubeconfig, extender.client_timing) as client, background() as spawn:
        await client.configure()
        root, pauses = _ElectedExtender(extender, client), Pauses()
        spawn("pauses", pauses.watch)
        server = ExtenderServer(root.term)
        if extender.probe_address is not None:
            address = extender.probe_address
            ready = root.problems if extender.service is None else root.problems_to_take_over
            metrics = partial(_metrics, root, server, pauses)
            spawn("probes", lambda: serve_http(address, live=list, ready=ready, metrics=metrics))
        async with (
            _certificates(extender, client, root) as certificates,
            server.listening(extender.address, certificates) as port,
        ):
            if extender.service is not None and extender.pod is not None:
                endpoint = Endpoint(client, extender.service, extender.pod, extender.pod_address, port=port)
                spawn("endpoint", lambda: endpoint.publish(lambda: not root.problems()))
            spawn("election", root.election.run)
            extender.started(port)
            # It ends before the election does, which leaves the Lease to another extender.
            async with background() as spawn_leading:
                await spawn_leading("leading", root.lead)


@asynccontextmanager
async def _certificates(
    extender: Extender, client: Client, root: "_ElectedExtender"
) -> AsyncIterator[Certificates | None]:
    """Yield what the server proves with who it is; what the extender makes itself is renewed meanwhile.

    Until that is made, the root says why nobody is answered.
    """
    own = extender.certificates
    if not isinstance(own, OwnCertificates):
        if not extender.verifies_clients:
            remedy = "use client certificates: scheduler.tls of the chart, or --tls-client-authority"
            _log.warning("clients_not_verified", reason=WHAT_ANYONE_CAN_DO, remedy=remedy)
        yield own
        return
    with closing(CertificateKeeper(client, extender.namespace, own)) as keeper:
        root.certificate_problems = keeper.problems
        await keeper.make()
        async with background() as spawn:
            spawn("certificates", keeper.keep)
            yield keeper.certificates


async def _metrics(root: "_ElectedExtender", server: ExtenderServer, pauses: Pauses, accept: str) -> tuple[str, bytes]:
    term = None if root.problems() else root.term()
    view = ExtenderView(
        leads=root.election.leads,
        ready=term is not None,
        nodes=len(term.account.nodes) if term else 0,
        promises=term.binder.promises if term else 0,
        certificate_end=server.certificate_end(),
        cache_age=root.cache_age,
        api_errors=root.api_errors,
        longest_pause=pauses.longest,
    )
    return extender_exposition(view, server.counts, accept)


class _ElectedExtender:
    """Begins and ends terms as the Lease comes and goes."""

    def __init__(self, extender: Extender, client: Client) -> None:
        self._client = client
        self._policy = extender.policy
        self._identity = extender.identity
        self._cordon_nodes = extender.cordon_nodes
        self._scheduler_names = extender.scheduler_names
        self._binder_timing = extender.binder_timing
        self._listed = extender.listed
        self.election = Election(
            client,
            extender.namespace,
            extender.lease,
            extender.identity,
            annotations={
                PLACEMENT: extender.policy,
                CLIENTS: VERIFIED if extender.verifies_clients else ANYONE,
            },
            timing=extender.lease_timing,
        )
        self.certificate_problems: Callable[[], list[str]] = list
        self._term: LeaderTerm | None = None
        self._follower: AccountFollower | None = None

    def term(self) -> LeaderTerm:
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
        """How long ago the API server last confirmed what is known of the cluster; None before all was listed."""
        return self._follower.age if self._follower else None

    def problems(self) -> list[str]:
        """Return why kube-scheduler cannot be answered; nothing where it can."""
        # Before there are certificates, nobody stands for election.
        if problems := self.certificate_problems():
            return problems
        number = self.election.term
        if not number:
            holder = self.election.holder
            late = "it could not renew its Lease in time; its log says why"
            why = late if holder == self._identity else f"{holder or 'nobody'} holds the Lease"
            return [f"this extender does not lead: {why}"]
        if self._term is None or self._term.number != number:
            return [f"this extender leads, and has not listed all {self._missing() or 'nodes and pods'} yet"]
        return []

    def problems_to_take_over(self) -> list[str]:
        """Return why this extender can neither answer nor stand by.

        To stand by takes to see another one lead, and to have listed all that this one needs to answer in its place.
        """
        if not self.election.holder or self.election.leads:
            return self.problems()
        missing = self._missing()
        return [f"this extender stands by, and has not listed all {missing} yet"] if missing else []

    def _missing(self) -> str:
        return " and ".join(self._follower.missing if self._follower else ("nodes", "pods"))

    async def lead(self) -> None:
        """Follow the cluster, and answer in each term; runs until cancelled.

        A defect ends what is known with the term, since a list that begins again does not say what vanished before.
        """
        account = ClusterAccount(self._policy)
        follower = self._follower = AccountFollower(self._client, account, self._cordon_nodes)
        binder = Binder(self._client, account, follower.handover, self._binder_timing, self._scheduler_names)
        try:
            async with asyncio.TaskGroup() as group:
                for work in (follower.follow(), binder.confirm(), self._answer(account, follower, binder)):
                    group.create_task(work)
        finally:
            self._follower = None

    async def _answer(self, account: ClusterAccount, follower: AccountFollower, binder: Binder) -> None:
        """Answer kube-scheduler in each term, once the account is complete."""
        await follower.complete()
        await follower.prepare()
        self._listed()

        async def serve_term(number: int) -> None:
            binder.open(partial(self.election.seconds_left_in, number))
            try:
                await follower.prepare()
                self._term = LeaderTerm(number, account, follower.disruptions, binder)
                _log.info("extender_ready", count=len(account.nodes))
                await asyncio.Event().wait()
            finally:
                self._term = None
                await binder.close()

        await in_each_term(self.election.leading, serve_term)
