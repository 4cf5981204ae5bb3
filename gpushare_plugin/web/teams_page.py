"""The page of what namespaces have, and the same as CSV."""

import csv
import io
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import visible
from gpushare_plugin.web.held import WHOLE
from gpushare_plugin.web.interest import Interest
from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.paging import page_of, updates
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.teams import Team, Teams
from gpushare_plugin.web.tiles import OTHERS, STEPS
from gpushare_plugin.web.use import percent
from gpushare_plugin.web.viewer import Viewer

COLUMNS = (
    "Namespace",
    "GPUs held",
    "GPUs promised",
    "GiB held",
    "GiB promised",
    "GPU-hours",
    "GiB-hours",
    "GiB-hours used",
    "GiB-hours wasted",
    "Use unknown",
    "GiB used now",
    "Used of GiB held",
    "GiB with known use",
)
"""The columns of the CSV; the promised amounts are among the held ones."""
_ON_PAGE = ("Namespace", "GPUs held", "GiB held", "GiB with known use", "GiB used now", "Used of GiB held")
PLACES = tuple(map(COLUMNS.index, dict.fromkeys((*_ON_PAGE, *COLUMNS))))
"""The places in COLUMNS of the columns of the page: what is now comes before what was over time."""
_BAR = _ON_PAGE.index("Used of GiB held")
ORDERS = {"": "who holds most", "use": "who uses least of it"}
"""The orders of the namespaces, by the word in the address."""
_UNKNOWN = "unknown"
"""The value of what was used and wasted where nobody measured."""
_ROWS = 200
"""The namespaces of a page."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What a text begins with that spreadsheet programs take for a formula (OWASP, CSV Injection)."""


class TeamsCsv(Struct, frozen=True):
    """What namespaces have, as a file."""

    name: str
    """The name of the file, with the beginning and the end of the time."""
    text: str
    """The lines of the file."""


class TeamsPage:
    """Shows what namespaces have."""

    def __init__(self, picture: Picture, teams: Teams) -> None:
        """Show `teams`, which `picture` changes."""
        self._picture, self._teams = picture, teams

    def all(self, number: str, viewer: Viewer, order: str = "") -> str:
        """Return a page of the namespaces in one of ORDERS, by the number of the page from 1."""
        now, order = time.monotonic(), order if order in ORDERS else ""
        teams, (since, until) = self._teams.seen_by(viewer, now), self._time(now)
        if order:
            teams.sort(key=_least_used)
        part = page_of(number, len(teams), _ROWS)
        return rendered(
            "teams.html",
            here="/teams",
            as_of=self._picture.as_of,
            updates=updates(self._picture.revision.value, Interest()),
            columns=[COLUMNS[place] for place in PLACES],
            rows=[(_on_page(each), _level(each)) for each in teams[part.rows]],
            bar=_BAR,
            orders=ORDERS,
            order=order,
            use_unknown=self._picture.unknown_use(Interest()),
            known=_gib(sum(each.held.measured_mib for each in teams), ","),
            held=_gib(sum(each.held.mib for each in teams), ","),
            others=OTHERS,
            part=part,
            since=f"{since:%Y-%m-%d %H:%M} UTC",
            until=f"{until:%Y-%m-%d %H:%M} UTC",
        )

    def csv(self, viewer: Viewer) -> TeamsCsv:
        """Return all namespaces that a viewer may see as CSV (RFC 4180)."""
        now, lines = time.monotonic(), io.StringIO()
        since, until = self._time(now)
        writer = csv.writer(lines)
        writer.writerow(COLUMNS)
        writer.writerows([_harmless(name), *rest] for name, *rest in map(_cells, self._teams.seen_by(viewer, now)))
        return TeamsCsv(f"gpushare-teams-{since:%Y%m%dT%H%MZ}-{until:%Y%m%dT%H%MZ}.csv", lines.getvalue())

    def _time(self, now: float) -> tuple[datetime, datetime]:
        """Return the beginning and the end of the time that was seen."""
        until = datetime.now(UTC)
        return until - timedelta(seconds=now - (now if self._teams.since is None else self._teams.since)), until


def _cells(team: Team, thousands: str = "") -> Iterator[str]:
    """Yield the cells of a row; `thousands` stands between the digits of large numbers, which programs cannot read."""
    held = team.held
    yield team.name
    yield from (f"{each / WHOLE:{thousands}.2f}" for each in (held.gpus, held.promised_gpus))
    yield from (_gib(each, thousands) for each in (held.mib, held.promised_mib))
    yield from (f"{team.gpu_hours:{thousands}.2f}", f"{team.gib_hours:{thousands}.1f}")
    yield from (_UNKNOWN if each is None else f"{each:{thousands}.1f}" for each in (team.used_hours, team.wasted_hours))
    yield _UNKNOWN if team.unknown_part is None else percent(team.unknown_part)
    yield _UNKNOWN if held.used_part is None else _gib(held.used_mib, thousands)
    yield percent(held.used_part)
    yield _gib(held.measured_mib, thousands)


def _on_page(team: Team) -> list[str]:
    """Return the cells of a row of the page; a part of a part of what is held is called so."""
    cells = list(_cells(team, thousands=","))
    if 0 < team.held.measured_mib < team.held.mib:
        cells[COLUMNS.index("Used of GiB held")] += " of known"
    return [cells[place] for place in PLACES]


def _gib(mib: int, thousands: str) -> str:
    return f"{mib / 1024:{thousands}.1f}"


def _level(team: Team) -> int | None:
    """Return how much of STEPS of a bar is filled by what a namespace uses of what it holds; None where unknown."""
    return None if team.held.used_part is None else min(STEPS, round(STEPS * team.held.used_part))


def _least_used(team: Team) -> tuple[bool, float]:
    """Return the place of a namespace where those that use least of what they hold come first; unknown use last."""
    return team.held.used_part is None, team.held.used_part or 0.0


def _harmless(name: str) -> str:
    """Return a name that no spreadsheet program takes for a formula."""
    return f"'{visible(name)}" if name.startswith(_FORMULAS) else visible(name)
