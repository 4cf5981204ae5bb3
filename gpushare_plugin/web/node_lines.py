"""A line for each node: what is wrong with the node, how the node shares its GPUs, and how much is held and free."""

from collections import Counter
from collections.abc import Iterable, Iterator

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.observe.cluster.report import NodeUse
from gpushare_plugin.observe.cluster.tables import all_states, is_fault
from gpushare_plugin.web.tiles import Tile, tiles
from gpushare_plugin.web.viewer import Viewer

_MOST_NOTICES = 3
"""The most notices, and the most reasons of faults, in a line; the page of the node has all."""
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
    """What is wrong with the node and with its GPUs, drift included, in a few words."""
    reasons: tuple[str, ...]
    """The first faults of GPUs of which a reason is known, each with the reason."""
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
        states=tuple(all_states(node)),
        reasons=tuple(_reasons(shown))[:_MOST_NOTICES],
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


def _reasons(several: Iterable[Tile]) -> Iterator[str]:
    return (f"GPU {each.gpu}: {state}" for each in several for state in each.states if is_fault(state) and ":" in state)


def _config(node: NodeUse) -> str:
    if not node.recorded:
        return "none"
    return "unknown" if node.config is None else node.config or "no file: the defaults"


def _shared(node: NodeUse) -> Iterator[SharedLine]:
    for use in (*node.resources, *node.given_by_claim):
        free = [node.free_of(gpu) for gpu in use.gpus]
        modes = tuple(dict.fromkeys(gpu.mode for gpu in use.gpus if gpu.mode))
        yield SharedLine(use.resource, modes, use.unit, use.allocated, use.units, sum(free), max(free, default=0))
