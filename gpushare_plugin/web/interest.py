"""Of which nodes open pages show the use: only of these is the use read."""

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.base.structs import Struct

LASTING = 30.0
"""Seconds for which a page counts as open; an open page says more often that it is open."""
MOST = 64
"""The most interests at a time; for one more, the oldest is forgotten."""


class Interest(Struct, frozen=True):
    """The nodes whose use a page shows."""

    node: str = ""
    """The name of a node, or a part of the names of nodes; empty for all nodes."""
    whole_name: bool = False
    """Whether `node` is the name of one node."""

    def takes(self, node: str) -> bool:
        """Return whether the page shows the use of a node."""
        return self.node == node if self.whole_name else self.node in node


class Interests:
    """What all open pages show of use; times are seconds of one clock."""

    def __init__(self) -> None:
        """Have no open page."""
        self._last = RecentlyUsed[Interest, float](MOST)

    def show(self, interest: Interest | None, now: float) -> None:
        """Count a page as open that shows use; None for a page that shows none."""
        if interest is not None:
            self._last.put(interest, now)

    def now(self, now: float) -> list[Interest]:
        """Return the interests of the pages that are open."""
        found = self._last.items()
        return [each for each, at in found if now - at < LASTING]
