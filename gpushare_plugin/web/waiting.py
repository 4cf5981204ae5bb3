"""Pods that wait for GPUs: which a viewer may see, in which order, and why each of them waits."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial
from typing import NamedTuple

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.claims.overview import ClaimOverview, claim_overview
from gpushare_plugin.kube.whole_cluster.waiting import WaitingPod
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import ALWAYS_OURS
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import essence
from gpushare_plugin.observe.cluster.explanation import Explanation, GpuVerdict, NodeVerdict, Told, explain_in_steps
from gpushare_plugin.observe.cluster.verdict import with_verdict
from gpushare_plugin.partitioner.outlook import JudgedOverview
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.tiles import OTHERS, reason_for
from gpushare_plugin.web.viewer import Viewer

_STEPS = 16
"""Steps of an explanation before other tasks have a turn."""
_MOST_KEPT = 2000
"""The most verdicts that are kept for the next page."""


class WaitingPods(Struct, frozen=True):
    """The pods that wait for GPUs."""

    seen: tuple[WaitingPod, ...]
    """Those that the viewer may see, the oldest first."""
    others: int
    """The number of those in namespaces that the viewer may not see."""


def waiting_pods(account: ClusterAccount, pods: Iterable[WaitingPod], viewer: Viewer) -> WaitingPods:
    """Return the pods among `pods` that wait for units, slices or claims, for a viewer.

    Pods with a name that no node offers count, too, where gpushare serves other names of the same domain.
    """
    domains = {_domain(name) for node in account.nodes.values() for name in node.offers}.union(
        map(_domain, ALWAYS_OURS)
    )
    found = [each for each in pods if each.waits_for_gpus(account) or _asks_of(each.pod, domains)]
    seen = sorted(
        (each for each in found if viewer.sees(each.pod.namespace)), key=lambda each: (each.pod.created, each.pod.label)
    )
    return WaitingPods(tuple(seen), len(found) - len(seen))


def _asks_of(pod: Pod, domains: AbstractSet[str]) -> bool:
    return not domains.isdisjoint(map(_domain, pod.request.amounts))


def _domain(resource: str) -> str:
    return resource.partition("/")[0]


def asked(waiting: WaitingPod) -> str:
    """Return what a pod asks for, in words."""
    amounts = [f"{amount} {name}" for name, amount in waiting.pod.request.amounts.items()]
    return ", ".join([*amounts, *(f"claim {name}" for name in waiting.claim_names)])


class ShortVerdict(NamedTuple):
    """Why a pod waits, as a row of a table."""

    sentence: str
    """The verdict of `gpushare explain`."""
    scheduler: str
    """What Kubernetes itself says, where that is what the pod waits for; else empty."""


class Explainer:
    """Explains pods that wait as `gpushare explain` does, from what is followed; other tasks have turns meanwhile."""

    def __init__(self, picture: Picture, judged: Callable[[], JudgedOverview]) -> None:
        """Explain the pods of `picture`; `judged` returns the same cluster, with the rules for where pods can run."""
        self._picture, self._judged = picture, judged
        self._short = RecentlyUsed[tuple[object, ...], ShortVerdict](_MOST_KEPT)

    async def explained(self, waiting: WaitingPod, viewer: Viewer, now: datetime) -> Explanation:
        """Return the explanation of a pod for a viewer."""
        claims, told = self._claims(waiting), self._told(waiting, now)
        if claims is not None:
            # Of thousands of GPUs, that takes a part of a second.
            named = partial(_named, viewer=viewer)
            told = replace(told, claims=await asyncio.to_thread(lambda: tuple(claims.sentences(named))))
        found = await self._steps(waiting, told, claims, whole=True)
        return replace(found, nodes=tuple(for_viewer(each, viewer) for each in found.nodes))

    async def short(self, waiting: WaitingPod, now: datetime) -> ShortVerdict:
        """Return the verdict on a pod, which names no other pod; pods that are alike have one verdict."""
        pod, told = waiting.pod, self._told(waiting, now)
        alike = (essence(pod.request), pod.needs.constraints, pod.owner, pod.priority, pod.ending, pod.gates)
        key = (self._picture.revision.value, *(waiting.claims and (pod.uid,)), *alike, told.waits, told.slices)
        if (kept := self._short.get(key)) is None:
            found = await self._steps(waiting, told, self._claims(waiting), whole=False)
            fits = any(each.fits for each in found.nodes)
            says = told.waits[0] if told.waits and (fits or not found.nodes) else ""
            kept = self._short.put(key, ShortVerdict(found.verdict, says if says != found.verdict else ""))
        return kept

    def _claims(self, waiting: WaitingPod) -> ClaimOverview | None:
        if not waiting.claims:
            return None
        classes = self._picture.standing.classes
        return claim_overview(self._judged().claims, waiting.pod.namespace, waiting.claims, classes)

    def _told(self, waiting: WaitingPod, now: datetime) -> Told:
        pod, standing = waiting.pod, self._picture.standing
        slices = self._judged().slices_for(pod, standing.leading, now) if pod.asks_for_slices else ()
        return Told({}, waiting.scheduler, waiting.reasons, standing.extender, slices, waiting.claim_names)

    async def _steps(
        self, waiting: WaitingPod, told: Told, claims: ClaimOverview | None, *, whole: bool
    ) -> Explanation:
        verdict = "" if claims is None else await asyncio.to_thread(lambda: claims.verdict)
        steps = explain_in_steps(self._picture.account, waiting.pod, told, whole=whole)
        for number, found in enumerate(steps):
            if found is not None:
                return with_verdict(found, verdict)
            if number % _STEPS == 0:
                await asyncio.sleep(0)
        raise AssertionError("an explanation has an end")


def for_viewer(found: NodeVerdict, viewer: Viewer) -> NodeVerdict:
    """Return the verdict of a node without names of pods that a viewer may not see."""
    if viewer.namespaces is None:
        return found
    ending = None if found.ending is None else tuple(_named(found.ending, viewer))
    return replace(found, ending=ending, gpus=tuple(_gpu(each, viewer) for each in found.gpus))


def _gpu(found: GpuVerdict, viewer: Viewer) -> GpuVerdict:
    return replace(found, holders=tuple(_named(found.holders, viewer)), reason=reason_for(found.reason, viewer) or None)


def _named(labels: Sequence[str], viewer: Viewer) -> Iterator[str]:
    """Yield the labels of pods that a viewer may see, and the number of the others."""
    seen = [label for label in labels if viewer.sees(label.partition("/")[0])]
    yield from seen
    if hidden := len(labels) - len(seen):
        yield f"{hidden} of {OTHERS}"
