"""The page `What fits`: a request that a person types, or a manifest that a person pastes."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from gpushare_plugin.base import structs
from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.core.policies import POLICIES
from gpushare_plugin.kube.manifest import LARGEST, ManifestError, manifest_pod
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import claim_names, judged_pod
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.observe.cluster.explanation import unoffered
from gpushare_plugin.observe.cluster.verdict import not_offered
from gpushare_plugin.partitioner.outlook import JudgedOverview
from gpushare_plugin.web.fits import MOST_COUNTED, Fits, answer, pieces_by_claim, short_pod
from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.paging import updates
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.short_form import LONGEST, ShortFormError, parse

_MOST_KEPT = 64
"""The most answers that are kept for others who ask the same."""


_NO_POD = "what-fits"
"""The UID of a pod that is only asked about; those of pods have another form."""


class _FitsAnswer(NamedTuple):
    pod: Pod
    fits: Fits
    slices: tuple[str, ...]
    missing: tuple[str, ...]


class FitsPage:
    """Answers one request for GPUs at a time, and each request once for every state of the cluster."""

    def __init__(self, picture: Picture, judged: Callable[[], JudgedOverview]) -> None:
        """Answer from the account that `picture` shows; see `Explainer` for `judged`."""
        self._picture, self._judged = picture, judged
        self._kept = RecentlyUsed[tuple[int, str, str], _FitsAnswer](_MOST_KEPT)
        self._turn = asyncio.Lock()

    async def short(self, text: str, placement: str = "") -> str:
        """Return the page for a request in its short form; an empty text asks for nothing yet.

        `placement` is the policy that the pod is to name; any other text than a policy chooses none.
        """
        if not text.strip():
            return self._page()
        try:
            asked = parse(text)
        except ShortFormError as error:
            return self._page(request=text, placement=placement, problem=str(error))
        revision = self._picture.revision.value
        async with self._turn:
            if (kept := self._kept.get((revision, text, placement))) is None:
                found = await self._judge(short_pod(asked, self._picture.account), placement)
                kept = self._kept.put((revision, text, placement), found)
        return self._answered(kept, placement, request=text, updates=updates(revision))

    async def manifest(self, text: str, placement: str = "") -> str:
        """Return the page for a manifest; see `short` for `placement`."""
        try:
            found = await asyncio.to_thread(manifest_pod, text.encode())
        except ManifestError as error:
            return self._page(manifest=text[:LARGEST], placement=placement, problem=str(error))
        async with self._turn:
            answered = await self._judge(found.pod, placement)
        claims = ", ".join(name or entry for entry, name in claim_names(found.pod).items())
        shown = {"manifest": text, "label": found.label, "claims": claims, "named_node": found.node}
        return self._answered(answered, placement, **shown)

    async def _judge(self, found: ApiPod, placement: str) -> "_FitsAnswer":
        """Return what fits of a pod, and which of its slices could be made, one pod at a time."""
        pod, account = _placed_by(judged_pod(found), placement), self._picture.account
        slices: tuple[str, ...] = ()
        if pod.slices and any(node.partitioning is not None for node in account.nodes.values()):
            ungated = structs.replace(found.spec, scheduling_gates=())
            asked = structs.replace(found, metadata=structs.replace(found.metadata, uid=_NO_POD), spec=ungated)
            slices = self._judged().slices_as_if(asked, self._picture.standing.leading, datetime.now(UTC))
        missing = tuple(not_offered(unoffered(account, pod.request, made=bool(slices))))
        return _FitsAnswer(pod, await answer(account, pod), slices, missing)

    def _answered(self, found: "_FitsAnswer", placement: str, **shown: object) -> str:
        account, pod, chosen = self._picture.account, found.pod, placement in POLICIES
        return self._page(
            pod=pod,
            answer=found.fits,
            slices=found.slices,
            missing=found.missing,
            ours=account.concerns(pod.request),
            by_claim=list(pieces_by_claim((each.use for each in self._picture.nodes.values()), pod)),
            placement=placement,
            policy=f"{placement}, chosen here" if chosen else _policy(pod, self._picture.standing.extender),
            of_nodes=0 if pod.request.policy else sum(node.policy is not None for node in account.nodes.values()),
            **shown,
        )

    def _page(self, **values: object) -> str:
        nothing = {
            "request": "",
            "manifest": "",
            "problem": "",
            "label": "",
            "pod": None,
            "placement": "",
            "claims": "",
            "named_node": "",
        }
        bounds = {"longest": LONGEST, "largest": LARGEST, "most": MOST_COUNTED, "policies": tuple(POLICIES)}
        return rendered(
            "fits.html", here="/fits", as_of=self._picture.as_of, **{"updates": "", **nothing, **bounds, **values}
        )


def _placed_by(pod: Pod, placement: str) -> Pod:
    """Return a pod that names a policy; the pod as it is where `placement` is none."""
    return structs.replace(pod, request=replace(pod.request, policy=placement)) if placement in POLICIES else pod


def _policy(pod: Pod, extender: ExtenderStanding) -> str:
    """Return the policy of a pod in words, for nodes that name none."""
    if pod.request.policy:
        return f"{pod.request.policy}, chosen by the pod"
    return extender.words if extender.installed else f"{extender.policy}, assumed: no scheduler extender was found"
