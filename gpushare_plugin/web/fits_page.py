"""The page `What fits`: a request that a person types, or a manifest that a person pastes."""

import asyncio

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.kube.manifest import LARGEST, ManifestError, manifest_pod
from gpushare_plugin.kube.pods import judged_pod
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.web.fits import MOST_COUNTED, Fits, answer, short_pod
from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.paging import updates
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.short_form import LONGEST, ShortFormError, parse

_MOST_KEPT = 64
"""The most answers that are kept for others who ask the same."""


class FitsPage:
    """Answers one request for GPUs at a time, and each request once for every state of the cluster."""

    def __init__(self, picture: Picture) -> None:
        """Fits from the account that `picture` shows."""
        self._picture = picture
        self._kept = RecentlyUsed[tuple[int, str], tuple[Pod, Fits]](_MOST_KEPT)
        self._turn = asyncio.Lock()

    async def short(self, text: str) -> str:
        """Return the page for a request in its short form; an empty text asks for nothing yet."""
        if not text.strip():
            return _page()
        try:
            asked = parse(text)
        except ShortFormError as error:
            return _page(request=text, problem=str(error))
        revision = self._picture.revision.value
        async with self._turn:
            if (kept := self._kept.get((revision, text))) is None:
                pod = short_pod(asked, self._picture.account)
                kept = self._kept.put((revision, text), (pod, await answer(self._picture.account, pod)))
        pod, found = kept
        return self._answered(pod, found, request=text, updates=updates(revision))

    async def manifest(self, text: str) -> str:
        """Return the page for a manifest."""
        try:
            found = manifest_pod(text.encode())
        except ManifestError as error:
            return _page(manifest=text[:LARGEST], problem=str(error))
        pod = judged_pod(found.pod)
        async with self._turn:
            answered = await answer(self._picture.account, pod)
        return self._answered(pod, answered, manifest=text, label=found.label)

    def _answered(self, pod: Pod, found: Fits, **shown: object) -> str:
        ours = self._picture.account.concerns(pod.request)
        return _page(pod=pod, answer=found, ours=ours, **shown)


def _page(**values: object) -> str:
    nothing = {"request": "", "manifest": "", "problem": "", "label": "", "pod": None, "answer": None, "ours": True}
    bounds = {"longest": LONGEST, "largest": LARGEST, "most": MOST_COUNTED}
    return rendered("fits.html", here="/fits", **{"updates": "", **nothing, **bounds, **values})
