"""The map: a tile for each GPU, with how much of the GPU is held, by whom, and what is wrong with it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.usage import Usage
from gpushare_plugin.observe.cluster.by_claim import HELD_BY_CLAIMS
from gpushare_plugin.observe.cluster.report import GpuUse, NodeUse, ResourceUse, UnofferedGpu
from gpushare_plugin.observe.cluster.tables import gpu_states, is_fault
from gpushare_plugin.web.colors import MORE, NO_COLORS, NamespaceColors
from gpushare_plugin.web.use import LEVELS, Holders, UsedParts, held_use, holders_of, used_parts
from gpushare_plugin.web.viewer import Viewer

STEPS = 20
"""The levels to which a tile can be filled."""

Color = Literal["held", "namespace", "way", "use"]
"""What the colour of a tile means."""
Grouping = Literal["node", "pool", "model"]
"""What tiles stand together."""
Size = Literal["small", "medium", "large"]
"""The size of tiles: `small` shows thousands without names of nodes, `large` has words in each."""

Marked = Literal["any", "faulty", "cordoned"]
"""Which GPUs are meant, by the borders of tiles."""

_NOT_READY = "node not ready"
_LONGEST_REASON = 200
"""The most characters of a reason in the words of a tile."""
OTHERS = "other namespaces"
"""The name of all namespaces that a viewer may not see."""


class TileShare(Struct, frozen=True):
    """What is held of a GPU in one resource."""

    resource: str
    """The name of the resource."""
    held: int
    """The units that pods hold or are promised."""
    units: int
    """The units of the GPU."""
    free: int
    """The largest free piece: the free units, of MIG instances of a card the most on one."""
    unit: str
    """The unit."""

    @property
    def percent(self) -> int:
        """The held part in percent."""
        return min(100, 100 * self.held // self.units) if self.units else 0


class Tile(Struct, frozen=True):
    """A GPU on the map; the MIG instances of a card are one tile."""

    node: str
    """The name of the node."""
    gpu: str
    """The index of the GPU; the UUID for a GPU that the node does not list any more."""
    product: str
    """The product name; empty if not known."""
    way: str
    """The kind of resource that shares the GPU; empty for a GPU that no resource has."""
    shares: tuple[TileShare, ...]
    """What is held of the GPU, by resource."""
    promised: bool
    """Whether units are promised, and the node has not confirmed the promise."""
    states: tuple[str, ...]
    """What is wrong with the GPU or with its node, in a few words."""
    namespaces: tuple[str, ...]
    """The namespaces that hold most of the GPU, the largest first."""
    used: UsedParts = UsedParts()
    """The used parts of the GPU."""
    users: tuple[str, ...] = ()
    """What each pod that the viewer may see uses of the GPU, in words; empty where the use is not shown."""

    @property
    def held(self) -> int:
        """The held part of the resource of which most is held, in percent."""
        return max((each.percent for each in self.shares), default=0)

    @property
    def faulty(self) -> bool:
        """Whether the GPU has a fault, or the node is not ready."""
        return any(state == _NOT_READY or is_fault(state) for state in self.states)

    @property
    def cordoned(self) -> bool:
        """Whether the GPU or the node is cordoned."""
        return "cordoned" in self.states or "node cordoned" in self.states

    @property
    def in_words(self) -> str:
        """The tile for people who do not see it."""
        shares = [f"{each.held} of {each.units} {each.unit}" for each in self.shares]
        return "; ".join([", ".join(shares) or "not offered", *self.states])


def tiles(node: NodeUse, viewer: Viewer, usage: Usage | None = None) -> Iterator[Tile]:
    """Yield the GPUs of a node, in the order of their indexes, with the use that is known."""
    holders = holders_of(usage)
    of_node = [*([] if node.ready else [_NOT_READY]), *(["node cordoned"] if node.cordoned else [])]
    outside = {str(gpu.index): gpu for gpu in node.not_offered}
    for label, uses in gpus_of(node).items():
        states = dict.fromkeys([*of_node, *(state for _, gpu in uses for state in states_with_reasons(gpu))])
        unoffered = outside.get(label)
        if unoffered is not None and not uses:
            states["by claim" if unoffered.by_claim else "not offered"] = None
        yield Tile(
            node.name,
            label,
            uses[0][1].product if uses else (unoffered.product if unoffered else ""),
            uses[0][0].kind if uses else "",
            tuple(_shares(uses)),
            any(gpu.promised for _, gpu in uses),
            tuple(states),
            tuple(_namespaces(uses, viewer)),
            used_parts(usage, {gpu.uuid for _, gpu in uses}),
            tuple(_users(uses, viewer, holders) if usage is not None else ()),
        )


def states_with_reasons(gpu: GpuUse) -> Iterator[str]:
    """Yield each problem of a GPU in a few words; a fault with its reason, where there is one."""
    for state in gpu_states(gpu):
        reason = gpu.reason or ""
        yield reason[:_LONGEST_REASON] if is_fault(state) and reason.startswith(f"{state}:") else state


def gpus_of(node: NodeUse) -> Mapping[str, list[tuple[ResourceUse, GpuUse]]]:
    """Return the GPUs of a node by index, or by UUID without an index, each with its resources; in this order."""
    several = [(use, gpu) for use in (*node.resources, *node.given_by_claim) for gpu in use.gpus]
    known: list[GpuUse | UnofferedGpu] = [*node.not_offered, *(gpu for _, gpu in several)]
    in_order = sorted(known, key=lambda gpu: (gpu.index < 0, gpu.index))
    # A GPU that is about to go from units to claims has its index in one of both only.
    labels = {gpu.uuid: gpu.uuid if gpu.index < 0 else str(gpu.index) for gpu in reversed(in_order)}
    found: dict[str, list[tuple[ResourceUse, GpuUse]]] = {labels[gpu.uuid]: [] for gpu in in_order}
    for use, gpu in several:
        found[labels[gpu.uuid]].append((use, gpu))
    return found


def reason_for(reason: str | None, viewer: Viewer) -> str:
    """Return why nobody gets units of a GPU, empty for a usable GPU.

    Reasons that name pods or claims name none for a viewer who may not see all.
    """
    text = reason or ""
    return text.partition(":")[0] if viewer.namespaces is not None and text.startswith(_NAMING) else text


_NAMING = (HELD_BY_CLAIMS, "waiting")
"""The beginnings of the reasons that name the pods or the claims that have the GPU."""


def _shares(uses: Iterable[tuple[ResourceUse, GpuUse]]) -> Iterator[TileShare]:
    """Yield what is held in each resource; the MIG instances of a card add up."""
    sums: dict[str, TileShare] = {}
    for use, gpu in uses:
        sum_of = sums.get(use.resource) or TileShare(use.resource, 0, 0, 0, use.unit)
        held, units = sum_of.held + gpu.allocated, sum_of.units + gpu.units
        sums[use.resource] = TileShare(use.resource, held, units, max(sum_of.free, gpu.free), use.unit)
    yield from sums.values()


def _namespaces(uses: Iterable[tuple[ResourceUse, GpuUse]], viewer: Viewer) -> Iterable[str]:
    held: Counter[str] = Counter()
    for use, gpu in uses:
        for pod in gpu.pods:
            held[_seen(pod.namespace, viewer)] += pod.units * 100 // max(1, gpu.units)
        for claim in gpu.claims:
            amount = claim.shares if use.unit == "shares" else claim.memory_mib
            held[_seen(claim.namespace, viewer)] += (amount or 0) * 100 // max(1, gpu.units)
    return (name for name, _ in held.most_common())


def _users(uses: Iterable[tuple[ResourceUse, GpuUse]], viewer: Viewer, holders: Holders) -> Iterator[str]:
    """Yield what the pods of the GPU use that a viewer may see; no pod that only the metrics name."""
    pods = {(pod.namespace, pod.pod, gpu.uuid): pod for _, gpu in uses for pod in gpu.pods}
    for (namespace, name, gpu_), pod in pods.items():
        if viewer.sees(namespace):
            used = held_use(holders, namespace, (name,), gpu_, pod.limits)
            yield f"{namespace}/{name}: memory {used.memory}, compute {used.compute}, limit {used.limit}"


def _seen(namespace: str, viewer: Viewer) -> str:
    return namespace if viewer.sees(namespace) else OTHERS


def classes(tile: Tile, color: Color, colors: NamespaceColors = NO_COLORS) -> str:
    """Return the classes of a tile in the style sheet: its colour, its level and its borders.

    `colors` are those of the namespaces, where these are shown.
    """
    level = -(-tile.held * STEPS // 100)
    if color == "use" and tile.used.level not in {"unknown", "idle"}:
        level = max(level, 1)  # a colour is seen of a GPU that is used, and that nobody holds
    found = [f"h{level}", _color(tile, color, colors)]
    if tile.promised:
        found.append("promised")
    if tile.faulty:
        found.append("bad")
    elif tile.cordoned:
        found.append("cordoned")
    return " ".join(filter(None, found))


def _color(tile: Tile, color: Color, colors: NamespaceColors) -> str:
    if color == "namespace":
        first = next(iter(tile.namespaces), None)
        return "" if first is None else "others" if first == OTHERS else colors.of(first)
    if color == "use":
        return f"u-{tile.used.level}"
    return f"w-{tile.way or 'none'}" if color == "way" else ""


def grouped(several: Iterable[Tile], by: Grouping, pool: str) -> Mapping[str, list[Tile]]:
    """Return the GPUs of a node of a `pool` by the name of the group that they are in; empty where all stand together.

    Without a GPU, there is no group.
    """
    groups: dict[str, list[Tile]] = {}
    for tile in several:
        name = {"node": "", "pool": pool or "no pool", "model": tile.product or "unknown model"}[by]
        groups.setdefault(name, []).append(tile)
    return groups


def words_of(tile: Tile, color: Color) -> str:
    """Return a tile in words; with the namespaces, or the use, where these are the colours."""
    said = [f"GPU {tile.gpu}: {tile.in_words}"]
    if color == "namespace" and tile.namespaces:
        said.append(f"held by {', '.join(tile.namespaces[:_NAMED])}")
    if color == "use":
        said += [tile.used.in_words, *tile.users[:_NAMED]]
        said += [f"{len(tile.users) - _NAMED} more pods"] if len(tile.users) > _NAMED else []
    return "; ".join(said)


def legend(color: Color, colors: NamespaceColors, viewer: Viewer) -> Iterator[tuple[str, str]]:
    """Yield the classes of samples of colours and borders, each with its meaning."""
    if color == "held":
        yield from (("h0", "free"), ("h10", "half held"), ("h20", "all held: the fullest resource of the GPU counts"))
    elif color == "way":
        yield from ((f"h20 w-{way}", words) for way, words in _WAYS.items())
    elif color == "use":
        yield "h10", "height: the held part; colour: the used part"
        yield from ((f"h20 u-{level}", LEVELS[level]) for level in LEVELS)
    else:
        yield from ((f"h20 {of_namespace}", each) for each, of_namespace in colors.classes.items())
        if colors.more:
            yield f"h20 {MORE}", f"{colors.more} more that hold less"
        if viewer.namespaces is not None:
            yield "h20 others", OTHERS
    yield "h20 promised", "promised by a scheduler, not confirmed by the node"
    yield (
        "h10 bad",
        "faulty, over capacity (pods have more than the GPU has), tainted, not ready, or a limit not in effect",
    )
    yield "h10 cordoned", "cordoned"


_NAMED = 3
"""The most namespaces, and the most pods, in the words of a tile."""
_WAYS = {
    "memory": "memory",
    "replicas": "replicas",
    "slices": "slices",
    "gpus": "whole GPUs",
    "claims": "by claim",
    "none": "not offered",
}
