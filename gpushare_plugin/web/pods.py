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
from gpushare_plugin.web.paging import page_of, text_in, updates
from gpushare_plugin.web.picture import Picture, PicturedNode
from gpushare_plugin.web.use import gib, percent
from gpushare_plugin.web.viewer import Viewer

_PODS = 100
"""The pods of a page."""
_AT_A_TIME = 50
"""The nodes of which pods are read before other work has its turn."""


CHOICES = ("namespace", "pod", "node")
"""What an address chooses pods by: the namespace, a part of the name of the pod, and the node."""
ORDERS = {"": "the largest", "waste": "most unused memory"}
"""The orders of the pods, by the word in the address."""


class HeldPod(Struct, frozen=True):
    """A pod, or a request of a claim, with all that it holds on its node."""

    namespace: str
    """The namespace."""
    pods: tuple[str, ...]
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
    def name(self) -> str:
        """The pod, or the pods of the claim, in words."""
        return ", ".join(self.pods) or "no pod"

    @property
    def size(self) -> tuple[int, int, str, str]:
        """The place among all pods, the largest first."""
        return -self.amounts.gpus, -self.amounts.mib, self.namespace, self.name

    @property
    def waste(self) -> tuple[bool, int, tuple[int, int, str, str]]:
        """The place among all pods, those with most unused memory first, and those of unknown use last."""
        return self.amounts.used_part is None, -self.amounts.wasted_mib, self.size

    @property
    def holds(self) -> list[str]:
        """The units on each GPU in words, GPUs with equal amounts together."""
        gpus: dict[str, list[str]] = {}
        for each in self.words:
            gpu, _, amount = each.partition(": ")
            gpus.setdefault(amount, []).append(gpu.removeprefix("GPU "))
        return [_on_gpus(several, amount) for amount, several in gpus.items()]


def _on_gpus(gpus: Sequence[str], amount: str) -> str:
    """Return an amount on GPUs in words; without an amount, the words are in the place of the GPU."""
    if not amount:
        return "; ".join(gpus)
    return f"GPU {gpus[0]}: {amount}" if len(gpus) == 1 else f"GPUs {', '.join(gpus)}: {amount} each"


def interest_of_pods(query: Mapping[str, str]) -> Interest:
    """Return the nodes whose use the page of an address shows."""
    node = text_in(query, "node")
    return Interest(node, whole_name=bool(node))


def pods_of(node: str, several: Iterable[HeldOfGpu]) -> list[HeldPod]:
    """Return who holds what of a node, each pod and each request of a claim once."""
    found: dict[tuple[str, tuple[str, ...], str], HeldPod] = {}
    for each in several:
        key = each.namespace, each.pods, each.claim
        before = found.get(key)
        if before is None:
            found[key] = HeldPod(each.namespace, each.pods, each.claim, node, each.words, each.amounts)
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
        """Return a page of the pods that an address asks for, by the number of the page from 1."""
        revision, interest = self._picture.revision.value, interest_of_pods(query)
        chosen = {name: text for name in CHOICES if (text := text_in(query, name))}
        order = query.get("order", "") if query.get("order") in ORDERS else ""
        pods = [
            each
            for _, several in (await self._made()).values()
            for each in several
            if chosen.get("namespace") in {None, each.namespace} and chosen.get("node") in {None, each.node}
        ]
        seen = [each for each in pods if viewer.sees(each.namespace)]
        named = [each for each in seen if any(chosen.get("pod", "") in name for name in each.pods or ("",))]
        named.sort(key=lambda each: each.waste if order else each.size)
        part = page_of(query.get("page", ""), len(named), _PODS)
        shown = named[part.rows]
        return rendered(
            "pods.html",
            here="/pods",
            as_of=self._picture.as_of,
            updates=updates(revision, interest),
            rows=list(zip(shown, self._ages(shown), strict=True)),
            whole=WHOLE,
            percent=percent,
            gib=gib,
            count=len(named),
            # How many pods of others have a name would tell the name.
            others=0 if chosen.keys() & {"namespace", "pod"} else len(pods) - len(seen),
            chosen={name: chosen.get(name, "") for name in CHOICES},
            filtered=bool(chosen),
            orders={word: (name, "/pods?" + urlencode({**chosen, "order": word})) for word, name in ORDERS.items()},
            order=order,
            use_unknown=self._picture.unknown_use(interest),
            address="/pods?" + urlencode({**chosen, **({"order": order} if order else {}), "page": ""}),
            part=part,
        )

    def _ages(self, several: Sequence[HeldPod]) -> list[str]:
        """Return how long ago each of some pods was created; of the pods of a claim, the oldest."""
        now, wanted = datetime.now(UTC), {(each.namespace, pod) for each in several for pod in each.pods}
        known = self._picture.account.pods.values()
        created = {(pod.namespace, pod.name): pod.created for pod in known if (pod.namespace, pod.name) in wanted}
        of_each = ([created.get((each.namespace, pod), UNKNOWN) for pod in each.pods] for each in several)
        oldest = (min(times, default=UNKNOWN) for times in of_each)
        return ["unknown" if each is UNKNOWN else age(each, now) for each in oldest]

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
