"""The pods and claims that hold parts of GPUs, those that hold most first."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.ledger.pod import UNKNOWN
from gpushare_plugin.observe.cluster.slices import age
from gpushare_plugin.web.held import WHOLE, HeldAmounts, HeldOfGpu, holdings, sizes
from gpushare_plugin.web.interest import Interest
from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.paging import page_of, updates
from gpushare_plugin.web.picture import Picture, PicturedNode
from gpushare_plugin.web.use import percent
from gpushare_plugin.web.viewer import Viewer

_PODS = 100
"""The pods of a page."""
_AT_A_TIME = 50
"""The nodes of which pods are read before other work has its turn."""
_LONGEST_NAME = 253
"""The most characters of a name in an address."""


class HeldPod(Struct, frozen=True):
    """A pod, or a request of a claim, with all that it holds on its node."""

    namespace: str
    """The namespace."""
    name: str
    """The pod, or the pods of the claim."""
    claim: str
    """The claim and its request; empty for a pod with units."""
    node: str
    """The node."""
    words: tuple[str, ...]
    """The units on each GPU."""
    amounts: HeldAmounts
    """What all adds up to."""

    @property
    def size(self) -> tuple[int, int, str, str]:
        """The place among all pods, the largest first."""
        return -self.amounts.gpus, -self.amounts.mib, self.namespace, self.name


def pods_of(node: str, several: Iterable[HeldOfGpu]) -> list[HeldPod]:
    """Return who holds what of a node, each pod and each request of a claim once."""
    found: dict[tuple[str, tuple[str, ...], str], HeldPod] = {}
    for each in several:
        key = each.namespace, each.pods, each.claim
        before = found.get(key)
        if before is None:
            name = ", ".join(each.pods) or "no pod"
            found[key] = HeldPod(each.namespace, name, each.claim, node, each.words, each.amounts)
        else:
            found[key] = replace(before, words=(*before.words, *each.words), amounts=before.amounts.plus(each.amounts))
    return list(found.values())


class PodsPage:
    """Shows who holds GPUs; the pods of a node are read anew only where the node changed."""

    def __init__(self, picture: Picture) -> None:
        """Show the pods of `picture`."""
        self._picture = picture
        self._pods: dict[str, tuple[PicturedNode, list[HeldPod]]] = {}

    async def all(self, query: Mapping[str, str], viewer: Viewer) -> str:
        """Return a page of the pods, by the number, the namespace and the node in an address."""
        revision = self._picture.revision.value
        chosen = {name: query.get(name, "")[:_LONGEST_NAME].strip() for name in ("namespace", "node")}
        chosen = {name: wanted for name, wanted in chosen.items() if wanted}
        pods = [
            each
            for _, several in (await self._made()).values()
            for each in several
            if chosen.get("namespace") in {None, each.namespace} and chosen.get("node") in {None, each.node}
        ]
        seen = sorted((each for each in pods if viewer.sees(each.namespace)), key=lambda each: each.size)
        part = page_of(query.get("page", ""), len(seen), _PODS)
        shown = seen[part.rows]
        ages = self._ages(shown)
        return rendered(
            "pods.html",
            here="/pods",
            as_of=self._picture.as_of,
            updates=updates(revision, Interest(chosen.get("node", ""), whole_name="node" in chosen)),
            rows=[(each, ages.get((each.namespace, each.name), "unknown")) for each in shown],
            whole=WHOLE,
            percent=percent,
            count=len(seen),
            others=0 if "namespace" in chosen else len(pods) - len(seen),
            chosen=chosen,
            address="/pods?" + urlencode({**chosen, "page": ""}),
            part=part,
        )

    def _ages(self, several: Sequence[HeldPod]) -> Mapping[tuple[str, str], str]:
        """Return how long ago each of some pods was created, by namespace and name."""
        now, wanted = datetime.now(UTC), {(each.namespace, each.name) for each in several}
        pods = (pod for pod in self._picture.account.pods.values() if (pod.namespace, pod.name) in wanted)
        return {(pod.namespace, pod.name): age(pod.created, now) for pod in pods if pod.created is not UNKNOWN}

    async def _made(self) -> Mapping[str, tuple[PicturedNode, list[HeldPod]]]:
        """Return the pods of each node; other work has its turn meanwhile."""
        found: dict[str, tuple[PicturedNode, list[HeldPod]]] = {}
        for count, (name, node) in enumerate(list(self._picture.nodes.items())):
            kept = self._pods.get(name)
            found[name] = kept if kept is not None and kept[0] is node else (node, self._read(name, node))
            if count % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        self._pods = found
        return found

    def _read(self, name: str, node: PicturedNode) -> list[HeldPod]:
        known = self._picture.account.nodes.get(name)
        known_sizes = sizes(None if known is None else known.record)
        return pods_of(name, holdings(node.use, known_sizes, node.reading.usage))
