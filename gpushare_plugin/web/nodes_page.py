"""The page of all nodes: a row a node, those with a fault first."""

import asyncio
from collections import Counter

from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.node_lines import NodeLine, node_line
from gpushare_plugin.web.paging import page_of, updates
from gpushare_plugin.web.picture import Picture, PicturedNode

_NODES = 200
"""The nodes of a page."""
_AT_A_TIME = 50
"""The nodes of which lines are made before other work has its turn."""


class NodesPage:
    """Shows the nodes of a picture; the line of a node is made anew only where the node changed."""

    def __init__(self, picture: Picture) -> None:
        """Show the nodes of `picture`."""
        self._picture = picture
        self._lines: dict[str, tuple[PicturedNode, NodeLine]] = {}

    async def all(self, number: str) -> str:
        """Return a page of the nodes, by the number of the page from 1; other work has its turn meanwhile."""
        revision = self._picture.revision.value
        lines = sorted([line for _, line in (await self._made()).values()], key=lambda line: line.rank)
        return rendered(
            "nodes.html",
            here="/nodes",
            as_of=self._picture.as_of,
            updates=updates(revision),
            lines=lines,
            versions=sorted(Counter(line.daemon for line in lines if line.daemon).items()),
            faulty=sum(line.faulty for line in lines),
            cordoned=sum(line.cordoned for line in lines),
            part=page_of(number, len(lines), _NODES),
        )

    async def _made(self) -> dict[str, tuple[PicturedNode, NodeLine]]:
        """Return the line of each node; other work has its turn meanwhile."""
        found: dict[str, tuple[PicturedNode, NodeLine]] = {}
        for count, (name, node) in enumerate(list(self._picture.nodes.items())):
            kept = self._lines.get(name)
            found[name] = kept if kept is not None and kept[0] is node else (node, node_line(node.use))
            if count % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        self._lines = found
        return found
