"""The pages of pods that wait for GPUs: all of them, and one with its whole explanation."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlencode

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.kube.whole_cluster.waiting import WaitingPod
from gpushare_plugin.ledger.pod import UNKNOWN
from gpushare_plugin.observe.cluster.explained import lines
from gpushare_plugin.observe.cluster.slices import age
from gpushare_plugin.partitioner.outlook import JudgedOverview
from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.paging import page_of, updates
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.viewer import Viewer
from gpushare_plugin.web.waiting import Explainer, ShortVerdict, asked, waiting_pods

_PODS = 50
"""The pods of a page."""


class WaitingRow(NamedTuple):
    """A pod that waits, as a row of the page."""

    waiting: WaitingPod
    """The pod."""
    asked: str
    """What the pod asks for."""
    age: str
    """How long the pod waits."""
    verdict: ShortVerdict
    """Why the pod waits."""


class WaitingPages:
    """Says why pods wait, each once for every state of the cluster; only of pods that are shown."""

    def __init__(self, picture: Picture, judged: Callable[[], JudgedOverview]) -> None:
        """Show the pods that wait in `picture`; see `Explainer` for `judged`."""
        self._picture = picture
        self._explainer = Explainer(picture, judged)
        self._texts = RecentlyUsed[tuple[object, ...], str](_PODS)
        self._turn = asyncio.Lock()

    async def all(self, number: str, viewer: Viewer, namespace: str = "") -> str:
        """Return a page of the pods that wait, of a namespace or of all, by the number of the page from 1."""
        picture, now = self._picture, datetime.now(UTC)
        revision = picture.revision.value
        found = waiting_pods(picture.account, picture.waiting.values(), viewer)
        seen = [each for each in found.seen if namespace in {"", each.pod.namespace}]
        part = page_of(number, len(seen), _PODS)
        async with self._turn:
            rows = [await self._row(each, now) for each in seen[part.rows]]
        return rendered(
            "waiting.html",
            here="/waiting",
            as_of=picture.as_of,
            updates=updates(revision),
            rows=rows,
            count=len(seen),
            others=0 if namespace else found.others,
            namespace=namespace,
            address="/waiting?" + urlencode({**({"namespace": namespace} if namespace else {}), "page": ""}),
            page=part.page,
            pages=part.pages,
        )

    async def one(self, name: str, viewer: Viewer) -> str | None:
        """Return the page of a pod, by NAMESPACE/NAME; None for a pod that does not wait or that nobody may see."""
        picture, now, revision = self._picture, datetime.now(UTC), self._picture.revision.value
        found = waiting_pods(picture.account, picture.waiting.values(), viewer).seen
        pod = next((each for each in found if each.pod.label == name), None)
        if pod is None:
            return None
        async with self._turn:
            key = (revision, pod.pod.uid, viewer.namespaces)
            if (text := self._texts.get(key)) is None:
                explanation = await self._explainer.explained(pod, viewer, now)
                text = self._texts.put(key, "\n".join(map(str, lines(explanation))))
        shown = {"updates": updates(revision), "pod": pod.pod, "text": text.split("\n")}
        return rendered("one_waiting.html", here="", as_of=picture.as_of, **shown)

    async def _row(self, waiting: WaitingPod, now: datetime) -> WaitingRow:
        created = waiting.pod.created
        waits = "unknown" if created is UNKNOWN else age(created, now)
        return WaitingRow(waiting, asked(waiting), waits, await self._explainer.short(waiting, now))
