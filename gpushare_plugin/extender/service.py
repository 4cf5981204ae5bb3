"""The composition root: follows the cluster, stands for election, and answers kube-scheduler while leading."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from gpushare_plugin.base.signals.ending import until_stopped
from gpushare_plugin.base.tasks import background
from gpushare_plugin.core.policies import DEFAULT_POLICY
from gpushare_plugin.extender.binder import Binder, BinderTiming
from gpushare_plugin.extender.follower import AccountFollower
from gpushare_plugin.extender.learning import Learning
from gpushare_plugin.extender.server import ExtenderServer
from gpushare_plugin.extender.term import LeaderTerm, NotLeadingError
from gpushare_plugin.extender.tls.own import CertificateKeeper, OwnCertificateSettings
from gpushare_plugin.kube.client import Client, Timing
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.lease import Election, LeaseTiming, in_each_term, own_identity
from gpushare_plugin.kube.names import ANYONE, CLIENTS, EXTENDER_LEASE, VERIFIED, WHAT_ANYONE_CAN_DO
from gpushare_plugin.kube.scheduling.endpoint import Endpoint
from gpushare_plugin.kube.scheduling.lessons import LESSON, written
from gpushare_plugin.ledger.annotations import PLACEMENT
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.observe.event_loop import Pauses
from gpushare_plugin.observe.exposition import extender_exposition
from gpushare_plugin.observe.http.certificates import Certificates
from gpushare_plugin.observe.http.probes import serve_http
from gpushare_plugin.observe.metrics.extender import ExtenderView
from gpushare_plugin.packing.seen import Lesson

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """The settings of an extender."""

    address: str
    """The address to answer kube-scheduler at."""
    namespace: str
    """The namespace of the Lease, the Service and the Secrets."""
    probe_address: str | None = None
    """The address to serve the kubelet's probes and the metrics at; None for no probes and metrics."""
    certificates: Certificates | OwnCertificateSettings | None = None
    """The certificates as files or made by the extender; None for plain HTTP."""
    policy: str = DEFAULT_POLICY
    """The policy for pods and nodes without a policy of their own."""
    exact: bool = False
    """Whether `filter` leaves only the nodes where a pod loses least by the policy `packing`."""
    kubeconfig: Path | None = None
    """The kubeconfig for the API server; None in a pod of the cluster."""
    cordon_nodes: tuple[str, ...] = ()
    """The nodes of Aliyun's plugin with ConfigMaps that cordon GPUs; `*` stands for all nodes."""
    scheduler_names: tuple[str, ...] = ()
    """The schedulers whose pods may be bound; empty for any scheduler."""
    service: str | None = None
    """The Service without a selector to point at the leading extender's pod; None for no Service."""
    pod: ObjectIdentity | None = None
    """The pod of this extender; None if no Service is used, or outside a pod."""
    pod_address: str = ""
    """The IP address of the pod."""
    lease: str = EXTENDER_LEASE
    """The name of the Lease."""
    lease_timing: LeaseTiming | None = None
    """The times of the election; None for the defaults."""
    binder_timing: BinderTiming | None = None
    """The times of the binder; None for the defaults."""
    client_timing: Timing | None = None
    """The times of the client of the API server; None for the defaults."""
    identity: str = field(default_factory=own_identity)
    """The name of this process as a holder of the Lease."""
    started: Callable[[int], None] = lambda _port: None
    """A function called with the port, once the extender listens."""
    listed: Callable[[], None] = lambda: None
    """A function called when the account is complete for the first time."""

    @property
    def verifies_clients(self) -> bool:
        """Whether clients need a certificate to be answered."""
        of = self.certificates
        return isinstance(of, OwnCertificateSettings) or (of is not None and of.client_authority is not None)


async def run(settings: ExtenderSettings) -> None:
    """Answer kube-scheduler until a signal ends the process; raises GpushareError like `serve`."""
    await until_stopped(serve(settings))


async def serve(settings: ExtenderSettings) -> None:
    """Answer kube-scheduler until cancelled.

    Raises GpushareError for an address, a certificate or a kubeconfig that cannot be used at the start.
    """
    async with Client(settings.kubeconfig, settings.client_timing) as client, background() as spawn:
        await client.configure()
        root, pauses = _ElectedExtender(settings, client), Pauses()
        spawn("pauses", pauses.watch)
        server = ExtenderServer(root.term, exact=settings.exact)
        if settings.probe_address is not None:
            address = settings.probe_address
            ready = root.problems if settings.service is None else root.problems_to_take_over
            metrics = partial(_metrics, root, server, pauses)
            spawn("probes", lambda: serve_http(address, live=list, ready=ready, metrics=metrics))
        async with (
            _certificates(settings, client, root) as certificates,
            server.listening(settings.address, certificates) as port,
        ):
            if settings.service is not None and settings.pod is not None:
                endpoint = Endpoint(client, settings.service, settings.pod, settings.pod_address, port=port)
                spawn("endpoint", lambda: endpoint.publish(lambda: not root.problems()))
            spawn("election", root.election.run)
            settings.started(port)
            # Ends before the election; the end of the election leaves the Lease to another extender.
            async with background() as spawn_leading:
                await spawn_leading("leading", root.lead)


@asynccontextmanager
async def _certificates(
    settings: ExtenderSettings, client: Client, root: "_ElectedExtender"
) -> AsyncIterator[Certificates | None]:
    """Yield the certificates of the server; certificates made by the extender are renewed while the context lasts.

    Until the extender has made certificates, the problems of `root` say why kube-scheduler is not answered.
    """
    own = settings.certificates
    if not isinstance(own, OwnCertificateSettings):
        if not settings.verifies_clients:
            remedy = "use client certificates: scheduler.tls of the chart, or --tls-client-authority"
            _log.warning("clients_not_verified", reason=WHAT_ANYONE_CAN_DO, remedy=remedy)
        yield own
        return
    with closing(CertificateKeeper(client, settings.namespace, own)) as keeper:
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
        packed=term.packed.gpus() if term and term.packed else None,
    )
    return extender_exposition(view, server.counts, accept)


class _ElectedExtender:
    """Begins a term when this process gets the Lease, and ends the term with the Lease."""

    def __init__(self, settings: ExtenderSettings, client: Client) -> None:
        self._client = client
        self._policy = settings.policy
        self._identity = settings.identity
        self._cordon_nodes = settings.cordon_nodes
        self._scheduler_names = settings.scheduler_names
        self._binder_timing = settings.binder_timing
        self._listed = settings.listed
        self.election = Election(
            client,
            settings.namespace,
            settings.lease,
            settings.identity,
            annotations={
                PLACEMENT: settings.policy,
                CLIENTS: VERIFIED if settings.verifies_clients else ANYONE,
            },
            timing=settings.lease_timing,
        )
        self.certificate_problems: Callable[[], list[str]] = list
        """Returns why the server has no certificates; empty without such a reason."""
        self._term: LeaderTerm | None = None
        self._follower: AccountFollower | None = None

    def term(self) -> LeaderTerm:
        """Return the current term; raises NotLeadingError without a term."""
        problems = self.problems()
        if self._term is None or problems:
            raise NotLeadingError(problems[0])
        return self._term

    @property
    def api_errors(self) -> Mapping[str, int]:
        """The number of failed requests to the API server, by kind."""
        return self._client.errors

    @property
    def cache_age(self) -> float | None:
        """Seconds since the API server last confirmed the account of the cluster; None before everything was listed."""
        return self._follower.age if self._follower else None

    def problems(self) -> list[str]:
        """Return why kube-scheduler cannot be answered, empty if kube-scheduler can be answered."""
        # Before the certificates are made, this extender does not stand for election.
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

        An extender stands by if another extender leads, and all nodes and pods are listed.
        """
        if not self.election.holder or self.election.leads:
            return self.problems()
        missing = self._missing()
        return [f"this extender stands by, and has not listed all {missing} yet"] if missing else []

    def _missing(self) -> str:
        return " and ".join(self._follower.missing if self._follower else ("nodes", "pods"))

    async def lead(self) -> None:
        """Follow the cluster, and answer in each term; runs until cancelled.

        A defect ends the account together with the term: a list begun anew does not tell which objects vanished before.
        """
        account = ClusterAccount(self._policy)
        learning = Learning(account, self._publish) if self._policy == "packing" else None
        packs = learning is not None
        follower = self._follower = AccountFollower(self._client, account, self._cordon_nodes, measured=packs)
        binder = Binder(self._client, account, follower.handover, self._binder_timing, self._scheduler_names)
        try:
            async with asyncio.TaskGroup() as group:
                for work in (follower.follow(), binder.confirm(), self._answer(account, follower, binder, learning)):
                    group.create_task(work)
                if learning is not None:
                    group.create_task(learning.run())
        finally:
            self._follower = None

    def _publish(self, lesson: Lesson) -> None:
        """Have the Lease say what was learned last, for `gpushare explain`."""
        self.election.announce({LESSON: written(lesson)})

    async def _answer(
        self, account: ClusterAccount, follower: AccountFollower, binder: Binder, learning: Learning | None
    ) -> None:
        """Answer kube-scheduler in each term, once the account is complete."""
        await follower.complete()
        await follower.prepare()
        self._listed()

        async def serve_term(number: int) -> None:
            binder.open(partial(self.election.seconds_left_in, number))
            try:
                await follower.prepare()
                if learning is not None:
                    await learning.remember()
                self._term = LeaderTerm(number, account, follower.disruptions, binder, learning)
                _log.info("extender_ready", count=len(account.nodes))
                await asyncio.Event().wait()
            finally:
                self._term = None
                await binder.close()

        await in_each_term(self.election.leading, serve_term)
