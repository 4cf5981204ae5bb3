"""Which colour each namespace has on a page: no two of those that hold most are alike."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.web.viewer import Viewer

COLORS = 12
"""The colours by which namespaces are told apart."""
_FEW = (4, 8)
"""So many namespaces at most have the first of the colours, which differ most from each other."""
MORE = "more"
"""The class of the pattern of all further namespaces."""


class NamespaceColors(Struct, frozen=True):
    """The colours of the namespaces of a page, which depend only on which namespaces have one."""

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


def colors_of(ranked: Iterable[str], viewer: Viewer) -> NamespaceColors:
    """Return the colours of the namespaces that a viewer may see; `ranked` has those that hold most first."""
    seen = list(filter(viewer.sees, ranked))
    if not seen:
        return NO_COLORS
    classes, more = dict(_classes(sorted(seen[:COLORS]))), max(0, len(seen) - COLORS)
    return NamespaceColors(classes, more, f"{zlib.crc32(repr((classes, more)).encode()):x}")


def _classes(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a class for each of COLORS names at most: by the name, or the next one that is left."""
    colors = next((most for most in _FEW if len(names) <= most), COLORS)
    left = list(range(colors))
    for name in names:
        wanted = zlib.crc32(name.encode()) % colors
        color = min(left, key=lambda each: (each - wanted) % colors)
        left.remove(color)
        yield name, f"c{color}"
