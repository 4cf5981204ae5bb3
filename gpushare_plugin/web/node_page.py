"""The page of one node: its GPUs with who holds them, and their faults."""

from gpushare_plugin.web.faults import SeenFault, SeenFaults
from gpushare_plugin.web.interest import Interest
from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.node_lines import node_line
from gpushare_plugin.web.paging import updates
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.tiles import gpus_of
from gpushare_plugin.web.use import holders_of
from gpushare_plugin.web.viewer import Viewer


class NodePage:
    """Shows one node."""

    def __init__(self, picture: Picture, faults: SeenFaults) -> None:
        """Show the nodes of `picture`, with their `faults`."""
        self._picture, self._faults = picture, faults

    def one(self, name: str, viewer: Viewer) -> str | None:
        """Return the page of a node; None for a node without GPUs."""
        if (found := self._picture.nodes.get(name)) is None:
            return None
        gpus, faults = gpus_of(found.use), dict[str, list[SeenFault]]()
        for each in self._faults.of(name):
            faults.setdefault(each.gpu, []).append(each)
        return rendered(
            "one_node.html",
            here="",
            as_of=self._picture.as_of,
            updates=updates(self._picture.revision.value, Interest(name, whole_name=True)),
            node=found.use,
            line=node_line(found.use),
            gpus=gpus.items(),
            viewer=viewer,
            reading=found.reading,
            holders=holders_of(found.reading.usage),
            since=self._faults.since,
            faults=faults,
            gone=[each for label, several in faults.items() if label not in gpus for each in several],
        )
