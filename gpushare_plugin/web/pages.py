"""The pages: what a template shows of the cluster, for a viewer."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlencode

from markupsafe import Markup

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.base.structs import Struct, asdict
from gpushare_plugin.web.markup import rendered, row
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


class Pages:
    """Makes the pages of one cluster."""

    def __init__(self, picture: Picture) -> None:
        """Show `picture`."""
        self._picture = picture
        self._rows = RecentlyUsed[tuple[object, ...], list[NodeRow]](_MOST_ROWS)

    async def map(self, query: Query, viewer: Viewer) -> str:
        """Return the map; other work has its turn meanwhile."""
        # Rows made after a change have the change, and come once more with the updates.
        since = self._picture.revision.value
        rows = [each async for each in self._all_rows(query, viewer)]
        groups: dict[str, list[Markup]] = {}
        for each in rows:
            groups.setdefault(each.group, []).append(each.markup)
        return rendered(
            "map.html",
            here="/",
            updates="/updates?" + urlencode({**asdict(query), "since": since}),
            gpus=sum(each.gpus for each in rows),
            nodes=len({each.node for each in rows}),
            any_node=bool(self._picture.nodes),
            query=query,
            legend=legend(query.color, self._picture.namespaces, viewer),
            claims_unknown=self._picture.claims_unknown,
            groups=sorted(groups.items()),
        )

    async def _all_rows(self, query: Query, viewer: Viewer) -> AsyncIterator[NodeRow]:
        for count, node in enumerate([each for name, each in self._picture.nodes.items() if query.wants(name)]):
            for each in self.rows(node, query, viewer):
                yield each
            if count % _AT_A_TIME == 0:
                await asyncio.sleep(0)

    def rows(self, node: PicturedNode, query: Query, viewer: Viewer) -> list[NodeRow]:
        """Return the rows of a node, a row for each group that the node is in."""
        if query.chooses_gpus:
            return self._made(node, query, viewer)
        key = (node.use.name, node.revision, query.group, query.color, viewer.namespaces)
        kept = self._rows.get(key)
        return self._rows.put(key, self._made(node, query, viewer)) if kept is None else kept

    def _made(self, node: PicturedNode, query: Query, viewer: Viewer) -> list[NodeRow]:
        name = node.use.name
        wanted = (each for each in tiles(node.use, viewer) if query.wants_tile(each, node.use))
        return [
            NodeRow(row_id, name, group, len(several), row(row_id, name, several, query.color))
            for group, several in grouped(wanted, query.group, node.pool).items()
            for row_id in [f"{name}/{group}".replace(" ", "-")]
        ]
