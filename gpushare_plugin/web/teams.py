"""What each namespace has of the GPUs of the cluster, now and over the time that the program has seen."""

from collections import OrderedDict
from collections.abc import Mapping

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.web.held import NOTHING, WHOLE, HeldAmounts
from gpushare_plugin.web.picture import PicturedNode
from gpushare_plugin.web.tiles import OTHERS
from gpushare_plugin.web.viewer import Viewer

KEPT = 7 * 24 * 3600.0
"""Seconds after which a namespace that holds nothing has no row of its own any more."""
MOST_IDLE = 10_000
"""The most namespaces that hold nothing and have a row of their own."""
_HOUR = 3600


class Team(Struct, frozen=True):
    """A namespace, or all namespaces that have no row of their own."""

    name: str
    """The name of the namespace."""
    held: HeldAmounts
    """What the namespace has now."""
    gpu_seconds: float
    """What the namespace had over time, in millionths of a GPU times seconds."""
    mib_seconds: float
    """What memory the namespace had over time, in MiB times seconds."""
    measured_seconds: float = 0.0
    """The part of `mib_seconds` of which the use was known, in MiB times seconds."""
    used_seconds: float = 0.0
    """What memory was used over time, as far as known, in MiB times seconds."""
    wasted_seconds: float = 0.0
    """What memory was held and known not to be used over time, in MiB times seconds."""

    @property
    def gpu_hours(self) -> float:
        """What the namespace had over time, in GPUs times hours."""
        return self.gpu_seconds / WHOLE / _HOUR

    @property
    def gib_hours(self) -> float:
        """What memory the namespace had over time, in GiB times hours."""
        return self.mib_seconds / 1024 / _HOUR

    @property
    def used_hours(self) -> float | None:
        """What memory was used over time, in GiB times hours; None where nobody measured."""
        return self.used_seconds / 1024 / _HOUR if self.measured_seconds else None

    @property
    def wasted_hours(self) -> float | None:
        """What memory was held and not used over time, in GiB times hours; None where nobody measured."""
        return self.wasted_seconds / 1024 / _HOUR if self.measured_seconds else None

    @property
    def unknown_part(self) -> float | None:
        """The part of the memory over time of which the use is unknown, from 0 to 1; None where no memory was held."""
        return max(0.0, 1 - self.measured_seconds / self.mib_seconds) if self.mib_seconds else None

    def after(self, seconds: float) -> "Team":
        """Return the namespace after so many seconds without a change."""
        return Team(
            self.name,
            self.held,
            self.gpu_seconds + self.held.gpus * seconds,
            self.mib_seconds + self.held.mib * seconds,
            self.measured_seconds + self.held.measured_mib * seconds,
            self.used_seconds + self.held.used_mib * seconds,
            self.wasted_seconds + self.held.wasted_mib * seconds,
        )

    def with_all_of(self, other: "Team") -> "Team":
        """Return the sum with another namespace, under the same name."""
        return Team(
            self.name,
            self.held.plus(other.held),
            self.gpu_seconds + other.gpu_seconds,
            self.mib_seconds + other.mib_seconds,
            self.measured_seconds + other.measured_seconds,
            self.used_seconds + other.used_seconds,
            self.wasted_seconds + other.wasted_seconds,
        )


_NO_OTHERS = Team(OTHERS, NOTHING, 0.0, 0.0)


class Teams:
    """Adds up what namespaces have, at each change of the cluster.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self) -> None:
        """See nothing yet."""
        self.since: float | None = None
        """The time of the first nodes that were seen; None before."""
        self._nodes: Mapping[str, PicturedNode] = {}
        self._teams: dict[str, tuple[Team, float]] = {}
        self._idle: OrderedDict[str, float] = OrderedDict()
        """The namespaces that hold nothing, with the time since when, the longest first."""
        self._gone = _NO_OTHERS

    def take(self, nodes: Mapping[str, PicturedNode], now: float) -> None:
        """Take in the nodes as they are from now on."""
        if self.since is None:
            self.since = now
        changes: dict[str, HeldAmounts] = {}
        for several, others, times in ((self._nodes, nodes, -1), (nodes, self._nodes, 1)):
            for name, node in several.items():
                if others.get(name) is not node:
                    for namespace, held in node.held.items():
                        changes[namespace] = changes.get(namespace, NOTHING).plus(held, times)
        self._nodes = dict(nodes)
        for namespace, change in changes.items():
            if change != NOTHING:
                self._change(namespace, change, now)
        self._forget(now)

    def seen_by(self, viewer: Viewer, now: float) -> list[Team]:
        """Return the namespaces that a viewer may see, those that hold most first, and the sum of all others last."""
        others, found = self._gone, list[Team]()
        for team in (team.after(now - then) for team, then in self._teams.values()):
            if viewer.sees(team.name):
                found.append(team)
            else:
                others = others.with_all_of(team)
        found.sort(key=lambda team: (-team.held.gpus, -team.held.mib, -team.gpu_seconds, team.name))
        return [*found, others] if others != _NO_OTHERS else found

    def _change(self, namespace: str, change: HeldAmounts, now: float) -> None:
        team, then = self._teams.get(namespace) or (Team(namespace, NOTHING, 0.0, 0.0), now)
        before = team.after(now - then)
        held = before.held.plus(change)
        self._teams[namespace] = replace(before, held=held), now
        self._idle.pop(namespace, None)
        if held == NOTHING:
            self._idle[namespace] = now

    def _forget(self, now: float) -> None:
        """Add namespaces that have held nothing for long to those without a row of their own."""
        while self._idle and (len(self._idle) > MOST_IDLE or now - next(iter(self._idle.values())) > KEPT):
            namespace, _ = self._idle.popitem(last=False)
            self._gone = self._gone.with_all_of(self._teams.pop(namespace)[0])
