"""What pods hold, for tests of what a node shares."""

from collections.abc import Iterable

from gpushare_plugin.core.holding import Confirmed, Holding, Holdings


def taken(units: Iterable[tuple[str, str]]) -> Holdings:
    """Return that containers may hold these units, given as resource and ID."""
    return tuple(Holding("", "", "", resource, frozenset({id_})) for resource, id_ in sorted(units))


def confirmed(*ids: str, at: float, pod: str = "pod") -> Confirmed:
    """Return that at a time a pod held just the units with these IDs."""
    return Confirmed.of((Holding("team", pod, "main", "a/b", frozenset(ids)),), at)
