"""A line for each node: what is wrong with the node, how the node shares its GPUs, and how much is held and free."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.observe.cluster.report import NodeUse
from gpushare_plugin.observe.cluster.tables import is_fault
from gpushare_plugin.web.tiles import Tile, tiles
from gpushare_plugin.web.viewer import Viewer

_MOST_NOTICES = 3
"""The most notices in a line; the page of the node has all."""
_MOST_STATES = 6
"""The most states of GPUs in a line; the page of the node has all."""
_MOST_GPUS = 3
"""The most GPUs named with a state."""
_OF_NODES = ("node not ready", "node cordoned", "by claim", "not offered")
"""The states of tiles that a line says of the node, or not at all."""
_NOBODY = Viewer("", frozenset())
"""A viewer of whom nothing that a tenant wrote is shown."""


class SharedLine(Struct, frozen=True):
    """One resource of a node: the configuration in effect, and what is held and free."""

    resource: str
    """The name of the resource; of GPUs that are given by claim, the name of the DRA driver."""
    modes: tuple[str, ...]
    """How the GPUs are shared, by the record of the node; empty without a record."""
    unit: str
    """The unit of the amounts."""
    held: int
    """The units that pods or claims have, those on unknown GPUs included."""
    units: int
    """The units of all GPUs."""
    free: int
    """The units that new pods can get; units on unknown GPUs count against every GPU."""
    largest: int
    """The largest free piece: what a new pod can get of one GPU."""


class NodeLine(Struct, frozen=True):
    """A node as a row of a table."""

    name: str
    """The name of the node."""
    states: tuple[str, ...]
    """What is wrong with the node and with its GPUs, drift included; faults with their reasons and first."""
    faulty: bool
    """Whether a GPU has a fault, or the node is not ready."""
    cordoned: bool
    """Whether the node or one of its GPUs is cordoned."""
    gpus: int
    """The number of GPUs; the MIG instances of a card are one."""
    models: tuple[tuple[str, int], ...]
    """The models and MIG profiles, each with the number of GPUs or instances."""
    shared: tuple[SharedLine, ...]
    """What the node shares."""
    partitioning: str
    """The kind of slices that GPUs are cut into for waiting pods; empty for a node that is not partitioned."""
    config: str
    """The name of the config in effect in words, or that there is none; `unknown` where the record does not say."""
    daemon: str
    """The version of gpushare's daemon, `unknown` where the record does not say; empty without a readable record."""
    notices: tuple[str, ...]
    """The first notices of the node."""
    more_notices: int
    """The number of further notices."""

    @property
    def rank(self) -> tuple[int, str]:
        """The place among all nodes: those with a fault first, then other states, then notices."""
        return (0 if self.faulty else 1 if self.states else 2 if self.notices else 3), self.name


def node_line(node: NodeUse) -> NodeLine:
    """Return the line of a node; nothing that a tenant wrote is in the line."""
    shown = list(tiles(node, _NOBODY))
    of_models = {
        gpu.uuid: gpu.product for use in (*node.resources, *node.given_by_claim) for gpu in use.gpus if gpu.index >= 0
    }
    of_models |= {gpu.uuid: gpu.product for gpu in node.not_offered}
    return NodeLine(
        name=node.name,
        states=(*_states_of(node), *_states_of_gpus(node, shown)),
        faulty=not node.ready or any(each.faulty for each in shown),
        cordoned=node.cordoned or any(each.cordoned for each in shown),
        gpus=len(shown),
        models=tuple(sorted(Counter(model or "unknown model" for model in of_models.values()).items())),
        shared=tuple(_shared(node)),
        partitioning=node.partitioning or "",
        config=_config(node),
        daemon=(node.gpushare or "unknown") if node.recorded else "",
        notices=node.notices[:_MOST_NOTICES],
        more_notices=max(0, len(node.notices) - _MOST_NOTICES),
    )


def _states_of(node: NodeUse) -> Iterator[str]:
    if not node.ready:
        yield "not ready"
    if node.cordoned:
        yield "cordoned"
    for pending in filter(None, (use.pending for use in (*node.resources, *node.given_by_claim))):
        yield f"{pending} on unknown GPUs"


def _states_of_gpus(node: NodeUse, several: Iterable[Tile]) -> Sequence[str]:
    """Return what is wrong with GPUs, those with the same trouble together."""
    gpus: dict[str, list[str]] = {}
    for each in several:
        for state in each.states:
            if state not in _OF_NODES:
                gpus.setdefault(state, []).append(f"GPU {each.gpu}")
    for unoffered in node.not_offered:
        if unoffered.reason:
            gpus.setdefault("not offered", []).append(f"GPU {unoffered.index}")
    found = [
        f"{some_of(named, _MOST_GPUS)}{':' if ':' in state else ''} {state}"
        for state, named in sorted(gpus.items(), key=lambda each: not is_fault(each[0]))
    ]
    return [*found[:_MOST_STATES], *([f"{len(found) - _MOST_STATES} more"] if len(found) > _MOST_STATES else [])]


def _config(node: NodeUse) -> str:
    if not node.recorded:
        return "none"
    return "unknown" if node.config is None else node.config or "no file: the defaults"


def _shared(node: NodeUse) -> Iterator[SharedLine]:
    for use in (*node.resources, *node.given_by_claim):
        free = [node.free_of(gpu) for gpu in use.gpus]
        modes = tuple(dict.fromkeys(gpu.mode for gpu in use.gpus if gpu.mode))
        yield SharedLine(use.resource, modes, use.unit, use.allocated, use.units, sum(free), max(free, default=0))
