"""The pages: what a template shows of the cluster, for a viewer."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import get_args
from urllib.parse import urlencode

from markupsafe import Markup

from gpushare_plugin.base.structs import Struct, asdict
from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.picture import Picture, PicturedNode
from gpushare_plugin.web.tiles import Color, Grouping, gpus_of, grouped, tiles
from gpushare_plugin.web.viewer import Viewer

_MOST_ROWS = 50_000
"""The most rows kept for further pages and updates."""


class Query(Struct, frozen=True):
    """What the address of a map asks for."""

    group: Grouping = "node"
    """What stands together."""
    color: Color = "held"
    """What colours mean."""
    node: str = ""
    """A part of the names of the nodes."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Query":
        """Return what an address asks for; what is not understood counts as not asked for."""
        found = cls(node=query.get("node", ""))
        group = next((each for each in get_args(Grouping) if each == query.get("group")), found.group)
        color = next((each for each in get_args(Color) if each == query.get("color")), found.color)
        return cls(group, color, found.node)

    def wants(self, node: str) -> bool:
        """Return whether a node is on the map."""
        return self.node in node


class NodeRow(Struct, frozen=True):
    """A node, or the part of a node, on a map."""

    id: str
    """The ID of the row on the page."""
    group: str
    """The name of the group that the row is in; empty where all nodes stand together."""
    markup: Markup
    """The row as HTML."""


class Pages:
    """Makes the pages of one cluster."""

    def __init__(self, picture: Picture) -> None:
        """Show `picture`."""
        self._picture = picture
        self._rows: OrderedDict[tuple[object, ...], list[NodeRow]] = OrderedDict()

    def map(self, query: Query, viewer: Viewer) -> str:
        """Return the map."""
        nodes = [each for name, each in self._picture.nodes.items() if query.wants(name)]
        groups: dict[str, list[Markup]] = {}
        for node in nodes:
            for row in self.rows(node, query, viewer):
                groups.setdefault(row.group, []).append(row.markup)
        return rendered(
            "map.html",
            here="/",
            updates="/updates?" + urlencode({**asdict(query), "since": self._picture.revision.value}),
            gpus=sum(len(gpus_of(each.use)) for each in nodes),
            nodes=len(nodes),
            query=query,
            claims_unknown=self._picture.claims_unknown,
            groups=sorted(groups.items()),
        )

    def node(self, name: str, viewer: Viewer) -> str | None:
        """Return the page of a node; None for a node without GPUs."""
        if (found := self._picture.nodes.get(name)) is None:
            return None
        gpus = gpus_of(found.use).items()
        return rendered("one_node.html", here="", updates="", node=found.use, gpus=gpus, viewer=viewer)

    def rows(self, node: PicturedNode, query: Query, viewer: Viewer) -> list[NodeRow]:
        """Return the rows of a node, a row for each group that the node is in."""
        name = node.use.name
        key = (name, node.revision, query.group, query.color, viewer.namespaces)
        if (kept := self._rows.get(key)) is not None:
            self._rows.move_to_end(key)
            return kept
        found = self._rows[key] = [
            NodeRow(row_id, group, Markup(rendered("row.html", id=row_id, node=name, tiles=several, color=query.color)))  # noqa: S704 - made by a template
            for group, several in grouped(tiles(node.use, viewer), query.group).items()
            for row_id in [f"{name}/{group}".replace(" ", "-")]
        ]
        while len(self._rows) > _MOST_ROWS:
            self._rows.popitem(last=False)
        return found
