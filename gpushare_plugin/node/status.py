"""The answers to probes, scrapes and `gpushare list`, in each phase of the daemon."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.core.holding import Holdings, Unknown
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kubelet.allocations.pod_resources import PodResourcesError
from gpushare_plugin.kubelet.allocations.quiet import QuietLister
from gpushare_plugin.node.configuration import Reloads
from gpushare_plugin.node.gpus.events import EventThread
from gpushare_plugin.node.node import ServedNode
from gpushare_plugin.node.pods.claimed import held_by_claim
from gpushare_plugin.observe.readiness import NO_GPU as NOT_READY
from gpushare_plugin.observe.readiness import STARTING, Readiness, readiness

if TYPE_CHECKING:
    from gpushare_plugin.core.claim_state import ClaimState
    from gpushare_plugin.node.pods.reconciler import PromiseReconciler
    from gpushare_plugin.node.pods.usage import UsageTracker
    from gpushare_plugin.observe.metrics.node import View

KUBELET_TIMEOUT = 3.0
"""Seconds for the kubelet to answer a question about holdings for `gpushare list`; the kubelet answers from memory."""

NO_GPU = Snapshot(notices=("no GPU of this node has answered yet",))
"""The node while there is no GPU."""
STANDS_BY = Snapshot(notices=("another gpushare serves this node, and this one takes over when it ends",))
"""The node while another daemon serves."""


class Phase(Protocol):
    """A phase of the daemon, with the answers to probes and the state of the node."""

    @property
    def complaints(self) -> list[str]:
        """The faults of the process itself."""
        ...

    @property
    def missing(self) -> list[str]:
        """The reasons why not every resource is registered with the kubelet."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The current state of the node."""
        ...

    @property
    def readiness(self) -> Readiness:
        """Whether new pods can get GPUs."""
        ...


class WithoutGpus(Struct, frozen=True):
    """No GPU has answered yet."""

    expected: bool = True
    """False only where the node has no GPU and the config allows a node without GPUs."""

    @property
    def complaints(self) -> list[str]:
        """No faults."""
        return []

    @property
    def missing(self) -> list[str]:
        """Nothing where the node may have no GPU: such a node registers nothing, and must not block a rollout."""
        return ["no GPU of this node has answered yet"] if self.expected else []

    @property
    def snapshot(self) -> Snapshot:
        """A node without GPUs."""
        return NO_GPU

    @property
    def readiness(self) -> Readiness:
        """The node has no GPU for pods."""
        return NOT_READY


class StandingBy(Struct, frozen=True):
    """Another daemon serves the node, and this daemon takes over when the other daemon ends."""

    @property
    def complaints(self) -> list[str]:
        """No faults."""
        return []

    @property
    def missing(self) -> list[str]:
        """Nothing: a rolling update ends the other daemon only when this one is ready."""
        return []

    @property
    def snapshot(self) -> Snapshot:
        """A node without GPUs: the other daemon has the GPUs."""
        return STANDS_BY

    @property
    def readiness(self) -> Readiness:
        """Not known here, and not published: the other daemon keeps the condition of the Node."""
        return STARTING


class Serving(Struct, frozen=True):
    """The daemon offers GPUs."""

    node: ServedNode
    """The node with its sessions."""
    reloads: Reloads
    """The reloads of the config."""
    events: EventThread
    """The thread that waits for events of the driver."""
    pods: "PromiseReconciler | None" = None
    """Compares holdings with promises; None where the daemon does not follow pods."""
    usage: "UsageTracker | None" = None
    """Looks at the usage of the GPUs; None until the tracker is loaded."""
    claims: "Callable[[], ClaimState | None]" = lambda: None
    """Returns the claims of the node now; None where no GPU is, or was, given by claim."""

    @property
    def complaints(self) -> list[str]:
        """The faults of the thread that waits for events."""
        return self.events.complaints

    @property
    def missing(self) -> list[str]:
        """The resources without a registration, or the unknown holdings that delay every registration."""
        if not self.node.allocations_known:
            return ["it is not known yet which units pods hold"]
        return [
            f"{name}: not registered with the kubelet"
            for name, session in self.node.sessions.items()
            if not session.registered
        ]

    @property
    def snapshot(self) -> Snapshot:
        """The node now, with the standing of resources at the kubelet, units beyond promises, claims, and the usage."""
        standings = {name: session.standing for name, session in self.node.sessions.items()}
        excess = self.pods.excess if self.pods is not None else None
        usage = self.usage.usage if self.usage is not None else None
        claims = self.claims()
        return replace(self.node.snapshot.value, standings=standings, excess=excess, usage=usage, claims=claims)

    @property
    def held_by_claim(self) -> Holdings:
        """What the containers of known pods have by claims; nothing where the daemon does not follow pods."""
        return held_by_claim(self.pods.watched.in_order if self.pods is not None else (), self.claims())

    @property
    def readiness(self) -> Readiness:
        """Whether new pods can get GPUs; starting until the holdings of pods are known."""
        if not self.node.allocations_known:
            return STARTING
        return readiness(self.node.snapshot.value, self.missing, self.complaints)


class Ending(Struct, frozen=True):
    """The daemon is about to end; the node stays as in the phase before."""

    reason: str
    """Why the daemon ends, for people."""
    before: Phase
    """The phase before the end."""

    @property
    def complaints(self) -> list[str]:
        """The reason why the daemon ends."""
        return [self.reason]

    @property
    def missing(self) -> list[str]:
        """The reasons of the phase before."""
        return self.before.missing

    @property
    def snapshot(self) -> Snapshot:
        """The node of the phase before."""
        return self.before.snapshot

    @property
    def readiness(self) -> Readiness:
        """Unknown: the next daemon may find the node in another state."""
        return readiness(self.snapshot, self.missing, self.complaints)


class DaemonStatus:
    """Answers probes, scrapes and `gpushare list` for the current `phase` of the daemon."""

    def __init__(self, lister: QuietLister, view: "Callable[[Snapshot], View]") -> None:
        """Start without GPUs; `view` returns the content of a scrape for a snapshot of the node.

        `lister` asks the kubelet for the holdings of pods.
        """
        self.phase: Phase = WithoutGpus()
        """The current phase of the daemon."""
        self._lister = lister
        self._view = view
        # The thread completes a page even after the client has gone; a single thread makes one page at a time.
        self._page_thread = ThreadPoolExecutor(1, "metrics")

    async def serve(self, address: str) -> None:
        """Answer `/healthz`, `/readyz` and `/metrics` at `address` until cancelled."""
        # In a thread: the import takes half as long as the whole start, and registration must not wait for the import.
        serve_http = await asyncio.to_thread(_serve_http)
        # An answer to a probe shows that the event loop runs.
        await serve_http(address, lambda: self.phase.complaints, lambda: self.phase.missing, self._metrics)

    async def report(self) -> bytes:
        """Return the report of the node for `gpushare list`, in JSON, with the current holdings of pods."""
        holdings = await self._holdings()
        snapshot = replace(self.phase.snapshot, holdings=holdings)
        problems = [*self.phase.complaints, *self.phase.missing]
        return await asyncio.get_running_loop().run_in_executor(self._page_thread, _report, snapshot, problems)

    async def _holdings(self) -> Holdings | Unknown:
        """Return the holdings of containers shown by pod-resources."""
        try:
            async with asyncio.timeout(KUBELET_TIMEOUT):
                listing = await self._lister.list()
                return (*listing.holdings, *listing.claims)
        except PodResourcesError as error:
            return Unknown(str(error))
        except TimeoutError:
            return Unknown(f"the kubelet has not answered at {self._lister.socket} for {KUBELET_TIMEOUT:g} s")

    async def _metrics(self, accept: str) -> tuple[str, bytes]:
        """Return content type and body of the current metrics, in a format accepted by the client."""
        # With many GPUs the page is long, and calls of the kubelet must not wait for the page.
        view = self._view(self.phase.snapshot)
        return await asyncio.get_running_loop().run_in_executor(self._page_thread, _exposition, view, accept)


def _serve_http() -> Callable[..., Awaitable[None]]:
    from gpushare_plugin.observe.http.probes import serve_http  # noqa: PLC0415 - large, and only where requested

    return serve_http


def _report(snapshot: Snapshot, problems: list[str]) -> bytes:
    from gpushare_plugin.observe.node.report import report  # noqa: PLC0415 - only where somebody asks
    from gpushare_plugin.observe.parts import encode  # noqa: PLC0415 - only where somebody asks

    return encode(report(snapshot, "daemon", problems)).encode()


def _exposition(view: "View", accept: str) -> tuple[str, bytes]:
    from gpushare_plugin.observe.exposition import exposition  # noqa: PLC0415 - large, and needed for scrapes only

    return exposition(view, accept)
