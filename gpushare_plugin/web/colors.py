"""Which colour each namespace has on a page: no two of those that hold most are alike, and each keeps its colour."""

import zlib
from collections.abc import Iterable, Mapping, Sequence

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.web.viewer import Viewer

COLORS = 12
"""The colours by which namespaces are told apart."""
_FEW = (4, 8)
"""So many namespaces at most have the first of the colours, which differ most from each other."""
_MOST_VIEWERS = 256
"""The most viewers whose colours are kept."""
MORE = "more"
"""The class of the pattern of all further namespaces."""


class NamespaceColors(Struct, frozen=True):
    """The colours of the namespaces of a page."""

    classes: Mapping[str, str]
    """The class in the style sheet of each namespace with a colour of its own, by name and in the order of names."""
    more: int
    """The number of further namespaces, which share a pattern."""
    key: str
    """A short text that differs where the colours or their legend differ; empty for no namespaces."""

    def of(self, namespace: str) -> str:
        """Return the class of a namespace."""
        return self.classes.get(namespace, MORE)


NO_COLORS = NamespaceColors({}, 0, "")
"""The colours of a page without namespaces."""


class ViewersColors:
    """The colours that each viewer sees: a namespace keeps its colour while it is among those that hold most."""

    def __init__(self) -> None:
        """Have shown nobody anything."""
        self._last = RecentlyUsed[str, NamespaceColors](_MOST_VIEWERS)

    def of(self, ranked: Iterable[str], viewer: Viewer) -> NamespaceColors:
        """Return the colours for a viewer; see `colors_of`."""
        return self._last.put(viewer.name, colors_of(ranked, viewer, self._last.get(viewer.name) or NO_COLORS))


def colors_of(ranked: Iterable[str], viewer: Viewer, before: NamespaceColors = NO_COLORS) -> NamespaceColors:
    """Return the colours of the namespaces that a viewer may see; `ranked` has those that hold most first.

    The namespaces that had colours `before` keep them.
    """
    seen = list(filter(viewer.sees, ranked))
    if not seen:
        return NO_COLORS
    classes, more = _classes(sorted(seen[:COLORS]), before.classes), max(0, len(seen) - COLORS)
    return NamespaceColors(classes, more, f"{zlib.crc32(repr((classes, more)).encode()):x}")


def _classes(names: Sequence[str], before: Mapping[str, str]) -> Mapping[str, str]:
    """Return a class for each of COLORS names at most: the one before, else by the name, or the next that is left."""
    colors = next((most for most in _FEW if len(names) <= most), COLORS)
    found = {name: before.get(name, "") for name in names}
    for name in (name for name, color in found.items() if not color):
        wanted = zlib.crc32(name.encode())
        tried = (f"c{(wanted + step) % colors}" for step in range(colors))
        found[name] = next(color for color in tried if color not in found.values())
    return found
