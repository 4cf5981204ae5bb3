"""What pages other than the map have in common: their numbers, and the address at which they are told of changes."""

from collections.abc import Mapping
from urllib.parse import urlencode

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.web.interest import Interest

_LONGEST_NAME = 253
"""The most characters of a name in an address, as of the longest name in Kubernetes."""
_LONGEST_NUMBER = 17
"""The most digits of a number in an address."""


class PageOf(Struct, frozen=True):
    """A page of several, each with a part of the rows."""

    page: int
    """The number of the page, from 1."""
    pages: int
    """The number of pages, 1 at least."""
    rows: slice
    """The rows of the page."""
    more: int
    """The number of rows on later pages."""


def page_of(number: str, rows: int, size: int) -> PageOf:
    """Return the page with a number from an address, of `rows` rows and `size` on a page; else the nearest one."""
    pages = max(1, -(-rows // size))
    page = min(pages, max(1, number_in(number) or 1))
    return PageOf(page, pages, slice((page - 1) * size, page * size), max(0, rows - page * size))


def text_in(query: Mapping[str, str], name: str) -> str:
    """Return a text from an address, no longer than a name; empty without one."""
    return query.get(name, "")[:_LONGEST_NAME].strip()


def number_in(text: str) -> int | None:
    """Return a number from an address; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER else None


def updates(revision: int, interest: Interest | None = None) -> str:
    """Return the address that says when a page of a revision of the picture has to be loaded again.

    A page that shows the use of nodes is also loaded again where the use changes.
    """
    shows = {} if interest is None else {"use": "node" if interest.whole_name else "part", "node": interest.node}
    return "/updates?" + urlencode({"whole": "1", "since": revision, **shows})


def interest_of(query: Mapping[str, str]) -> Interest | None:
    """Return the nodes whose use a page shows, by the address of its updates; None for a page that shows none."""
    use = query.get("use")
    return Interest(query.get("node", "")[:_LONGEST_NAME], use == "node") if use in {"node", "part"} else None
