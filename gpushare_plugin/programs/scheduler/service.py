"""The composition root: leads where it can, follows the cluster while it leads, and answers kube-scheduler."""

import asyncio
import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gpushare_plugin.adapters.cluster.client import Client
from gpushare_plugin.adapters.cluster.endpoint import Endpoint, OwnPod
from gpushare_plugin.adapters.cluster.lease import Election, LeaseTiming
from gpushare_plugin.foundation.signals import until_stopped
from gpushare_plugin.foundation.tasks import background
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.policies import DEFAULT_POLICY
from gpushare_plugin.programs.scheduler.binder import Binder
from gpushare_plugin.programs.scheduler.followed import Followed
from gpushare_plugin.programs.scheduler.server import Certificates, ExtenderServer
from gpushare_plugin.programs.scheduler.term import NotLeadingError, Term
from gpushare_plugin.telemetry.http import serve_http

_log = structlog.get_logger()


def _identity() -> str:
    """Return a name that no other process has, not even the next one in the same pod."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True)
class Extender:
    """All that one extender is made of.

    `address` is where kube-scheduler is answered, `probe_address` where the kubelet is, None for nowhere. The Lease is
    `lease` in `namespace`. `kubeconfig` says where the API server is; None in a pod of its cluster. The one that leads
    points `service`, a Service without a selector in the same namespace, at its own `pod`; None for no Service.
    """

    address: str
    namespace: str
    probe_address: str | None = None
    certificates: Certificates | None = None
    policy: str = DEFAULT_POLICY
    kubeconfig: Path | None = None
    service: str | None = None
    pod: OwnPod | None = None
    lease: str = "gpushare-extender"
    lease_timing: LeaseTiming | None = None
    identity: str = field(default_factory=_identity)
    started: Callable[[int], None] = lambda _port: None


async def run(extender: Extender) -> None:
    """Answer kube-scheduler until SIGTERM or SIGINT; raises as `serve` does."""
    await until_stopped(serve(extender))


async def serve(extender: Extender) -> None:
    """Answer kube-scheduler until cancelled; raises GpushareError where an address or a certificate cannot be used."""
    async with Client(extender.kubeconfig) as client, background() as spawn:
        root = _Root(extender, client)
        server = ExtenderServer(root.term)
        async with server.listening(extender.address, extender.certificates) as port:
            if extender.probe_address is not None:
                address = extender.probe_address
                ready = root.problems if extender.service is None else root.problems_to_take_over
                spawn("probes", lambda: serve_http(address, live=list, ready=ready))
            if extender.service is not None and extender.pod is not None:
                endpoint = Endpoint(client, extender.namespace, extender.service, extender.pod, port=port)
                spawn("endpoint", lambda: endpoint.publish(lambda: not root.problems()))
            spawn("election", root.election.run)
            extender.started(port)
            await root.lead()


class _Root:
    """Begins and ends terms as the Lease comes and goes."""

    def __init__(self, extender: Extender, client: Client) -> None:
        self._client = client
        self._policy = extender.policy
        self.election = Election(
            client, extender.namespace, extender.lease, extender.identity, timing=extender.lease_timing
        )
        self._term: Term | None = None
        self._followed: Followed | None = None

    def term(self) -> Term:
        """Return the term that is now; raises NotLeadingError where there is none."""
        problems = self.problems()
        if self._term is None or problems:
            raise NotLeadingError(problems[0])
        return self._term

    def problems(self) -> list[str]:
        """Return why kube-scheduler cannot be answered; nothing where it can."""
        if not self.election.leads:
            return [f"this extender does not lead: {self.election.holder or 'nobody'} holds the Lease"]
        if self._term is None:
            missing = " and ".join(self._followed.missing if self._followed else ("nodes", "pods"))
            return [f"this extender leads, and has not listed all {missing} yet"]
        return []

    def problems_to_take_over(self) -> list[str]:
        """Return why this extender can neither answer nor stand by, which takes to see another one lead."""
        return [] if self.election.holder and not self.election.leads else self.problems()

    async def lead(self) -> None:
        """Follow the cluster in each term; runs until cancelled."""
        async for leading in self.election.leading.follow():
            if leading:
                await self._serve_term()

    async def _serve_term(self) -> None:
        """Follow the cluster until this process does not lead any more."""
        account = ClusterAccount(self._policy)
        self._followed = Followed(self._client, account)
        binder = Binder(self._client, account, lambda: self.election.seconds_left)
        try:
            async with background() as spawn:
                spawn("Nodes", self._followed.follow_nodes)
                spawn("Pods", self._followed.follow_pods)
                spawn("Bindings", binder.confirm)
                lost = asyncio.create_task(self._until_lost())
                complete = asyncio.create_task(self._followed.complete())
                try:
                    await asyncio.wait((lost, complete), return_when=asyncio.FIRST_COMPLETED)
                    if not lost.done():
                        self._term = Term(account, binder)
                        _log.info("extender_ready", count=len(account.nodes()))
                        await lost
                finally:
                    for task in (lost, complete):
                        task.cancel()
                        with suppress(asyncio.CancelledError):
                            await task
        finally:
            self._term = self._followed = None

    async def _until_lost(self) -> None:
        async for leading in self.election.leading.follow():
            if not leading:
                return
