"""Tells open pages what has changed, by server-sent events."""

import asyncio
import json
import math
from collections.abc import Mapping

from aiohttp import web

from gpushare_plugin.web.colors import NamespaceColors
from gpushare_plugin.web.following import FollowedPicture
from gpushare_plugin.web.pages import Pages
from gpushare_plugin.web.paging import interest_of, number_in
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.query import Query
from gpushare_plugin.web.viewer import Viewer

LONGEST = 90.0
"""Seconds that a stream lasts; the browser then opens another one, and says what it has seen."""
_AT_MOST = 500
"""The most nodes of one event; after more changes the page is loaded again."""
_PAUSE = 5.0
"""Seconds between two reloads of a page at least."""
_ALIVE = 5.0
"""Seconds after which a page learns that the connection is alive, and whether the API server answers."""
_AGES = 60.0
"""Seconds after which a page that is loaded again is so without a change: ages on the page go on."""


async def stream(
    request: web.BaseRequest, followed: FollowedPicture, pages: Pages, viewer: Viewer, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send changes of the page of the request, for LONGEST seconds or until the client hangs up.

    A page is the map, whose rows are sent, or with the parameter `whole` a page that is loaded again.
    """
    answer = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
    await answer.prepare(request)
    picture, query, shown = followed.picture, Query.of(request.query), _number(request)
    whole = "whole" in request.query
    interest = interest_of(request.query) if whole else query.interest
    clock = asyncio.get_running_loop().time
    begun, reloaded, was_silent = clock(), -math.inf, False
    key = shown_key = request.query.get("colors", "")
    while clock() < begun + LONGEST:
        followed.interests.show(interest, clock())
        replaced, revision = picture.revision.replaced, picture.revision.value
        if whole:
            rows = _reload(picture.held_changed if interest is None else revision, shown, revision)
        else:
            colors = pages.colors(query, viewer)
            key = pages.legend_key(query, colors)
            rows = _changes(picture, pages, query, viewer, shown, colors) if key == shown_key else None
        if whole and clock() > max(begun, reloaded) + _AGES:
            rows = None
        if rows is None and (early := reloaded + _PAUSE - clock()) > 0:
            await asyncio.sleep(early)
            continue
        silence = picture.silence()
        await answer.write(_answering(silence, was_silent=was_silent) + _event(revision, rows))
        reloaded = clock() if rows is None else reloaded
        was_silent, shown, shown_key = silence is not None, revision, key
        try:
            async with asyncio.timeout(_ALIVE):
                await replaced.wait()
        except TimeoutError:
            continue
    return answer


def _answering(silence: float | None, *, was_silent: bool) -> bytes:
    """Return the event that says since how many seconds the API server does not answer, or that it answers again."""
    if silence is None:
        return b"event: answers\ndata:\n\n" if was_silent else b""
    return f"event: silent\ndata: {silence:.1f}\n\n".encode()


def _number(request: web.BaseRequest) -> int:
    """Return the revision that the client has seen."""
    text = request.headers.get("Last-Event-ID") or request.query.get("since", "")
    return -1 if (number := number_in(text)) is None else number


_Rows = Mapping[str, Mapping[str, str]]
"""All rows of each changed node, as HTML by the ID of the row."""


def _reload(changed: int, shown: int, revision: int) -> _Rows | None:
    """Return no rows for a page that shows all since the last change; None where the page has to be loaded again."""
    return {} if changed <= shown <= revision else None


def _changes(  # noqa: PLR0913, PLR0917 - what is shown to whom
    picture: Picture, pages: Pages, query: Query, viewer: Viewer, shown: int, colors: NamespaceColors
) -> _Rows | None:
    """Return the rows of nodes that have changed; None where the page has to be loaded again."""
    if not picture.whole_changed <= shown <= picture.revision.value:
        return None
    several = picture.changed_since(shown, with_use=query.shows_use)
    changed = [each for each in several if query.wants(each.use.name)]
    if len(changed) > _AT_MOST:
        return None
    return {
        each.use.name: {row.id: str(row.markup) for row in pages.rows(each, query, viewer, colors)} for each in changed
    }


def _event(revision: int, rows: _Rows | None) -> bytes:
    name = "load" if rows is None else "rows"
    return f"id: {revision}\nevent: {name}\ndata: {json.dumps(rows)}\n\n".encode()
