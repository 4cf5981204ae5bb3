"""The page `What fits`: a request that a person types, or a manifest that a person pastes."""

import asyncio
from dataclasses import replace

from gpushare_plugin.base import structs
from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.core.policies import POLICIES
from gpushare_plugin.kube.manifest import LARGEST, ManifestError, manifest_pod
from gpushare_plugin.kube.pods import claim_names, judged_pod
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.web.fits import MOST_COUNTED, Fits, answer, pieces_by_claim, short_pod
from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.paging import updates
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.short_form import LONGEST, ShortFormError, parse

_MOST_KEPT = 64
"""The most answers that are kept for others who ask the same."""


class FitsPage:
    """Answers one request for GPUs at a time, and each request once for every state of the cluster."""

    def __init__(self, picture: Picture) -> None:
        """Answer from the account that `picture` shows."""
        self._picture = picture
        self._kept = RecentlyUsed[tuple[int, str, str], tuple[Pod, Fits]](_MOST_KEPT)
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
                pod = _placed_by(short_pod(asked, self._picture.account), placement)
                kept = self._kept.put((revision, text, placement), (pod, await answer(self._picture.account, pod)))
        pod, found = kept
        return self._answered(pod, found, placement, request=text, updates=updates(revision))

    async def manifest(self, text: str, placement: str = "") -> str:
        """Return the page for a manifest; see `short` for `placement`."""
        try:
            found = await asyncio.to_thread(manifest_pod, text.encode())
        except ManifestError as error:
            return self._page(manifest=text[:LARGEST], placement=placement, problem=str(error))
        pod = _placed_by(judged_pod(found.pod), placement)
        async with self._turn:
            answered = await answer(self._picture.account, pod)
        claims = ", ".join(name or entry for entry, name in claim_names(found.pod).items())
        return self._answered(pod, answered, placement, manifest=text, label=found.label, claims=claims)

    def _answered(self, pod: Pod, found: Fits, placement: str, **shown: object) -> str:
        account, chosen = self._picture.account, placement in POLICIES
        return self._page(
            pod=pod,
            answer=found,
            ours=account.concerns(pod.request),
            by_claim=list(pieces_by_claim((each.use for each in self._picture.nodes.values()), pod)),
            partitioned=sum(node.partitioning is not None for node in account.nodes.values()) if pod.slices else 0,
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
