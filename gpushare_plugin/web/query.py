"""What the address of a map asks for: what stands together, what colours mean, and which GPUs are shown."""

from collections.abc import Mapping
from typing import get_args

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.observe.cluster.filters import FreeAmount, is_model
from gpushare_plugin.observe.cluster.report import NodeUse
from gpushare_plugin.web.interest import Interest
from gpushare_plugin.web.tiles import Color, Grouping, Marked, Size, Tile

_LONGEST = 253
"""The most characters of a text in an address, as long as the longest name in Kubernetes."""


class Query(Struct, frozen=True):
    """What the address of a map asks for."""

    group: Grouping = "node"
    """What stands together."""
    color: Color = "held"
    """What colours mean."""
    size: Size = "medium"
    """The size of tiles."""
    state: Marked = "any"
    """The GPUs with a fault, or those that are cordoned."""
    node: str = ""
    """A part of the names of the nodes."""
    model: str = ""
    """Words of the product names of the GPUs."""
    namespace: str = ""
    """The namespace that has units of the GPUs; empty for any."""
    free: str = ""
    """What the GPUs have free: units, or memory such as `10GiB`."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Query":
        """Return what an address asks for; what is not understood counts as not asked for."""
        choices = {"group": Grouping, "color": Color, "size": Size, "state": Marked}
        chosen = {name: query[name] for name, kind in choices.items() if query.get(name) in get_args(kind)}
        texts = {name: query.get(name, "")[:_LONGEST].strip() for name in ("node", "model", "namespace", "free")}
        return cls(**chosen, **texts)  # type: ignore[arg-type] # looked up above

    @property
    def unreadable(self) -> str:
        """Why the free amount is not understood, and counts as not asked for; empty where there is no mistake."""
        try:
            FreeAmount.parse(self.free or "0")
        except ValueError as error:
            return str(error)
        return ""

    @property
    def divides_nodes(self) -> bool:
        """Whether a node may be shown in parts, by groups or filters."""
        return self.group != "node" or self.chooses_gpus

    @property
    def chooses_gpus(self) -> bool:
        """Whether only some GPUs of a node may be shown."""
        return bool(self.model or self.namespace or self.free or self.state != "any")

    @property
    def shows_use(self) -> bool:
        """Whether tiles show the use of GPUs."""
        return self.color == "use"

    @property
    def interest(self) -> Interest | None:
        """The nodes whose use the map shows; None for a map that shows none."""
        return Interest(self.node) if self.shows_use else None

    def wants(self, node: str) -> bool:
        """Return whether a node is on the map."""
        return self.node in node

    def wants_tile(self, tile: Tile, node: NodeUse) -> bool:
        """Return whether a GPU of a node is on the map."""
        return (
            (not self.model or is_model(tile.product, [self.model]))
            and (not self.namespace or self.namespace in tile.namespaces)
            and (self.state == "any" or (tile.faulty if self.state == "faulty" else tile.cordoned))
            and (not self.free or self._is_free(tile, node))
        )

    def _is_free(self, tile: Tile, node: NodeUse) -> bool:
        if self.unreadable:
            return True
        amount, takes_pods = FreeAmount.parse(self.free), node.ready and not node.cordoned
        return any(amount.met_by(each.free if takes_pods else 0, each.unit) for each in tile.shares)
