"""Breaches: limits found not to be in effect, each told once until the limit is in effect again."""

from collections.abc import Iterable

from gpushare_plugin.core.overuse import Overuser, Turn, overuser
from gpushare_plugin.core.usage import ContainerUsage

_HOLDS = {"in effect", "in effect since"}


class Breaches:
    """The current breaches. A breach is over when the limit is found in effect, not while the effect is unknown."""

    def __init__(self) -> None:
        """Begin without breaches."""
        self._current: frozenset[Overuser] = frozenset()

    def follow(self, containers: Iterable[ContainerUsage]) -> Turn:
        """Take in the usage of `containers`; return the breaches that began and ended.

        The breach of a container that is gone is forgotten.
        """
        states = {overuser(each): (each.effect.state, each) for each in containers if each.effect is not None}
        broken = {who for who, (state, _) in states.items() if state == "not in effect"}
        mended = {who for who in self._current if who in states and states[who][0] in _HOLDS}
        began = tuple(each for who, (_, each) in states.items() if who in broken - self._current)
        self._current = (self._current & states.keys() | broken) - mended
        return Turn(began, tuple(each for who, (_, each) in states.items() if who in mended))
