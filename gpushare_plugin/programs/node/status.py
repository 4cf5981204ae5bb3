"""The answers to probes, scrapes and `gpushare list`, in each phase of the daemon."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from gpushare_plugin.adapters.kubelet.allocations.pod_resources import PodResourcesError
from gpushare_plugin.adapters.kubelet.allocations.quiet import QuietLister
from gpushare_plugin.foundation.structs import Struct, replace
from gpushare_plugin.model.holding import Holdings, Unknown
from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.programs.node.configuration import Reloads
from gpushare_plugin.programs.node.gpus.events import EventThread
from gpushare_plugin.programs.node.node import ServedNode
from gpushare_plugin.telemetry.readiness import NO_GPU as NOT_READY
from gpushare_plugin.telemetry.readiness import STARTING, Readiness, readiness

if TYPE_CHECKING:
    from gpushare_plugin.programs.node.pods.reconciler import PromiseReconciler
    from gpushare_plugin.programs.node.pods.usage import UsageTracker
    from gpushare_plugin.telemetry.metrics.node import View

KUBELET_TIMEOUT = 3.0
"""Seconds that the kubelet has to say what pods hold, when somebody asks; it answers from memory."""

NO_GPU = Snapshot(notices=("no GPU of this node has answered yet",))
"""The node while there is no GPU."""


class Phase(Protocol):
    """The phase the daemon is in."""

    @property
    def complaints(self) -> list[str]:
        """What is wrong with the process itself."""
        ...

    @property
    def missing(self) -> list[str]:
        """What is missing until every resource is registered with the kubelet."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The node at this moment."""
        ...

    @property
    def readiness(self) -> Readiness:
        """Whether new pods can get GPUs."""
        ...


class WithoutGpus(Struct, frozen=True):
    """No GPU has answered yet; GPUs are `expected` unless the node has none and the config allows that."""

    expected: bool = True

    @property
    def complaints(self) -> list[str]:
        """Nothing is wrong."""
        return []

    @property
    def missing(self) -> list[str]:
        """A node that may have no GPU has nothing to register, and must not block a rollout."""
        return ["no GPU of this node has answered yet"] if self.expected else []

    @property
    def snapshot(self) -> Snapshot:
        """A node without GPUs."""
        return NO_GPU

    @property
    def readiness(self) -> Readiness:
        """There is nothing to get."""
        return NOT_READY


class Serving(Struct, frozen=True):
    """GPUs are offered."""

    node: ServedNode
    """The node that offers the GPUs."""
    reloads: Reloads
    """The reloads of the config."""
    events: EventThread
    """The thread that waits for events of the driver."""
    pods: "PromiseReconciler | None" = None
    """What compares pods with their promises, None where pods are not followed."""
    usage: "UsageTracker | None" = None
    """What looks at who uses the GPUs, None before the first look."""

    @property
    def complaints(self) -> list[str]:
        """What is wrong with the thread that waits for events."""
        return self.events.complaints

    @property
    def missing(self) -> list[str]:
        """The resources that are not registered."""
        if not self.node.allocations_known:
            return ["it is not known yet which units pods hold"]
        return [
            f"{name}: not registered with the kubelet"
            for name, session in self.node.sessions.items()
            if not session.registered
        ]

    @property
    def snapshot(self) -> Snapshot:
        """The node as it is now, with how resources stand with the kubelet, what is held against promises, and used."""
        standings = {name: session.standing for name, session in self.node.sessions.items()}
        excess = self.pods.excess if self.pods is not None else None
        usage = self.usage.usage if self.usage is not None else None
        return replace(self.node.snapshot.value, standings=standings, excess=excess, usage=usage)

    @property
    def readiness(self) -> Readiness:
        """Whether new pods can get GPUs, once it is known what pods hold."""
        if not self.node.allocations_known:
            return STARTING
        return readiness(self.node.snapshot.value, self.missing, self.complaints)


class Ending(Struct, frozen=True):
    """The daemon ends for a `reason`; all else is as it was in the phase `before`."""

    reason: str
    before: Phase

    @property
    def complaints(self) -> list[str]:
        """Why the daemon ends."""
        return [self.reason]

    @property
    def missing(self) -> list[str]:
        """As before."""
        return self.before.missing

    @property
    def snapshot(self) -> Snapshot:
        """As before."""
        return self.before.snapshot

    @property
    def readiness(self) -> Readiness:
        """It is not known what the next daemon finds."""
        return readiness(self.snapshot, self.missing, self.complaints)


class DaemonStatus:
    """Answers probes, scrapes and `gpushare list` for the current `phase` of the daemon."""

    def __init__(self, lister: QuietLister, view: "Callable[[Snapshot], View]") -> None:
        """Start without GPUs; `view` returns what a scrape shows of the node and of what else is counted.

        `lister` asks the kubelet what pods hold.
        """
        self.phase: Phase = WithoutGpus()
        self._lister = lister
        self._view = view
        # A page is completed though its client has gone; with one thread, the next page waits for that.
        self._page_thread = ThreadPoolExecutor(1, "metrics")

    async def serve(self, address: str) -> None:
        """Answer `/healthz`, `/readyz` and `/metrics` at `address` until cancelled."""
        # In a thread: the import takes half as long as the whole start, and registering must not wait for it.
        serve_http = await asyncio.to_thread(_serve_http)
        # That a probe is answered at all shows that the event loop runs.
        await serve_http(address, lambda: self.phase.complaints, lambda: self.phase.missing, self._metrics)

    async def report(self) -> bytes:
        """Return the node as `gpushare list` shows it, as JSON, with what pods hold at this moment."""
        holdings = await self._holdings()
        snapshot = replace(self.phase.snapshot, holdings=holdings)
        problems = [*self.phase.complaints, *self.phase.missing]
        return await asyncio.get_running_loop().run_in_executor(self._page_thread, _report, snapshot, problems)

    async def _holdings(self) -> Holdings | Unknown:
        """Return what pod-resources shows that containers hold."""
        try:
            async with asyncio.timeout(KUBELET_TIMEOUT):
                return (await self._lister.list()).holdings
        except PodResourcesError as error:
            return Unknown(str(error))
        except TimeoutError:
            return Unknown(f"the kubelet has not answered at {self._lister.socket} for {KUBELET_TIMEOUT:g} s")

    async def _metrics(self, accept: str) -> tuple[str, bytes]:
        """Return content type and body of the current metrics, in the format that is accepted."""
        # With many GPUs the page is long, and calls of the kubelet must not wait for it.
        view = self._view(self.phase.snapshot)
        return await asyncio.get_running_loop().run_in_executor(self._page_thread, _exposition, view, accept)


def _serve_http() -> Callable[..., Awaitable[None]]:
    from gpushare_plugin.telemetry.http.probes import serve_http  # noqa: PLC0415 - large, and only where requested

    return serve_http


def _report(snapshot: Snapshot, problems: list[str]) -> bytes:
    from gpushare_plugin.inspect.report import encode, report  # noqa: PLC0415 - only where somebody asks

    return encode(report(snapshot, "daemon", problems)).encode()


def _exposition(view: "View", accept: str) -> tuple[str, bytes]:
    from gpushare_plugin.telemetry.exposition import exposition  # noqa: PLC0415 - large, and needed for scrapes only

    return exposition(view, accept)
