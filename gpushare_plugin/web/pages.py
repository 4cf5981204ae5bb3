"""The pages: what a template shows of the cluster, for a viewer."""

import asyncio
import zlib
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, urlencode

from markupsafe import Markup

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.base.structs import Struct, asdict
from gpushare_plugin.web.colors import NO_COLORS, NamespaceColors, ViewersColors
from gpushare_plugin.web.markup import RowStyle, name_width, parts, row
from gpushare_plugin.web.picture import Picture, PicturedNode
from gpushare_plugin.web.query import Query
from gpushare_plugin.web.tiles import grouped, legend, tiles
from gpushare_plugin.web.viewer import Viewer

_AT_A_TIME = 50
"""The nodes of which rows are made before other work has its turn."""
_MOST_ROWS = 50_000
"""The most rows kept for further pages and updates."""


class NodeRow(Struct, frozen=True):
    """A node, or the part of a node, on a map."""

    id: str
    """The ID of the row on the page."""
    node: str
    """The name of the node."""
    group: str
    """The name of the group that the row is in; empty where all nodes stand together."""
    gpus: int
    """The number of tiles in the row."""
    markup: Markup
    """The row as HTML."""


class _Shown(Struct, frozen=True):
    """What of a cluster is on a map."""

    gpus: int
    """The number of tiles."""
    nodes: int
    """The number of nodes with tiles."""
    groups: Sequence[tuple[str, Iterable[Markup]]]
    """The rows of each group, by the name of the group."""


class Pages:
    """Makes the pages of one cluster."""

    def __init__(self, picture: Picture) -> None:
        """Show `picture`."""
        self._picture = picture
        self._rows = RecentlyUsed[tuple[object, ...], list[NodeRow]](_MOST_ROWS)
        self._colors = ViewersColors()

    async def map(self, query: Query, viewer: Viewer) -> Iterator[str]:
        """Return the parts of the map, all of them as the cluster is now; other work has its turn meanwhile."""
        since, colors = self._picture.revision.value, self.colors(query, viewer)
        followed = {**asdict(query), "since": since, "colors": self.legend_key(query, colors)}
        nodes = [each for name, each in self._picture.nodes.items() if query.wants(name)]
        shown = (
            await self._grouped(nodes, query, viewer, colors)
            if query.divides_nodes
            else self._in_order(nodes, query, viewer, colors)
        )
        return parts(
            "map.html",
            here="/",
            as_of=self._picture.as_of,
            updates="/updates?" + urlencode(followed),
            shown=shown,
            names=name_width(each.use.name for each in nodes),
            any_node=bool(self._picture.nodes),
            query=query,
            legend=legend(query.color, colors, viewer),
            use_unknown=self._use_unknown(query),
            claims_unknown=self._picture.claims_unknown,
        )

    def colors(self, query: Query, viewer: Viewer) -> NamespaceColors:
        """Return the colours of the namespaces of a map; none where colours mean something else."""
        return self._colors.of(self._picture.ranked, viewer) if query.color == "namespace" else NO_COLORS

    def legend_key(self, query: Query, colors: NamespaceColors) -> str:
        """Return a short text that differs where what is said above the map differs."""
        return f"{zlib.crc32(self._use_unknown(query).encode()):x}" if query.shows_use else colors.key

    def _use_unknown(self, query: Query) -> str:
        return "" if query.interest is None else self._picture.unknown_use(query.interest)

    def _in_order(self, nodes: Sequence[PicturedNode], query: Query, viewer: Viewer, colors: NamespaceColors) -> _Shown:
        """Return whole nodes, whose rows are made as the rows are taken."""
        rows = (row.markup for node in nodes for row in self.rows(node, query, viewer, colors))
        return _Shown(sum(each.gpus for each in nodes), sum(each.gpus > 0 for each in nodes), [("", rows)])

    async def _grouped(
        self, nodes: Sequence[PicturedNode], query: Query, viewer: Viewer, colors: NamespaceColors
    ) -> _Shown:
        """Return the GPUs that are wanted in their groups; other work has its turn meanwhile."""
        groups: dict[str, list[Markup]] = {}
        gpus, found = 0, set[str]()
        for count, node in enumerate(nodes):
            for each in self.rows(node, query, viewer, colors):
                groups.setdefault(each.group, []).append(each.markup)
                gpus += each.gpus
                found.add(each.node)
            if count % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        return _Shown(gpus, len(found), sorted(groups.items()))

    def rows(
        self, node: PicturedNode, query: Query, viewer: Viewer, colors: NamespaceColors = NO_COLORS
    ) -> list[NodeRow]:
        """Return the rows of a node, a row for each group that the node is in; see `colors`."""
        if query.chooses_gpus:
            return self._made(node, query, viewer, colors)
        revision = node.use_revision if query.shows_use else node.revision
        key = (node.use.name, revision, query.group, query.color, query.size == "large", colors.key, viewer.namespaces)
        kept = self._rows.get(key)
        return self._rows.put(key, self._made(node, query, viewer, colors)) if kept is None else kept

    def _made(self, node: PicturedNode, query: Query, viewer: Viewer, colors: NamespaceColors) -> list[NodeRow]:
        name, style = node.use.name, RowStyle(query.color, colors, query.size)
        usage = node.reading.usage if query.shows_use else None
        wanted = (each for each in tiles(node.use, viewer, usage) if query.wants_tile(each, node.use))
        return [
            NodeRow(row_id, name, group, len(several), row(row_id, name, several, style))
            for group, several in grouped(wanted, query.group, node.pool).items()
            for row_id in [f"{name}/{quote(group)}"]  # without spaces, and another ID for each group
        ]
