"""HTML that escapes all that a tenant can write: from templates, by the one door to Jinja, and the rows of maps."""

import base64
import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from gpushare_plugin.base.text import amount_of, visible
from gpushare_plugin.base.version import __version__
from gpushare_plugin.web.colors import NO_COLORS, NamespaceColors
from gpushare_plugin.web.static_files import STATIC
from gpushare_plugin.web.tiles import Color, Size, Tile, classes, reason_for, words_of
from gpushare_plugin.web.use import held_use, used_parts


def _shown(value: object) -> object:
    """Return a value for a page: text without characters that people do not see."""
    return visible(value) if type(value) is str else value


def _lines(text: str) -> Markup:
    """Return the text of a field of many lines: line ends and tabs stay, for the field is sent again as it stands."""
    return escape("".join([each if each in "\r\n\t" else visible(each) for each in text]))


def _amount(number: float) -> str:
    """Return an amount with its thousands set apart."""
    return f"{number:,.10g}"


def _moment(at: datetime) -> str:
    """Return an aware time to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"


_environment = Environment(
    loader=PackageLoader(__package__),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(lines=_lines, amount=_amount)
_environment.globals.update(
    classes=classes,
    counted=amount_of,
    held_use=held_use,
    used_parts=used_parts,
    moment=_moment,
    reason_for=reason_for,
    static=STATIC,
    version=__version__,
)


def rendered(template: str, **values: Any) -> str:
    """Return the text of a template with these values."""
    return _environment.get_template(template).render(values)


def in_one_file(template: str, **values: Any) -> str:
    """Return the text of a template that extends `one_file.html`: the page has the style sheet, and allows no other."""
    style = STATIC["/static/style.css"].body.decode()
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return rendered(template, style=Markup(style), style_hash=style_hash, **values)  # noqa: S704 - our own file


def parts(template: str, **values: Any) -> Iterator[str]:
    """Yield the text of a template with these values, of which iterators are read as the parts are taken."""
    return _environment.get_template(template).generate(values)


_WIDTHS = 8
"""The widths of columns in the style sheet, each so many characters wider than the one before."""


def name_width(names: Iterable[str]) -> int:
    """Return which width of the style sheet a column of names has; of longer names, the widest."""
    return min(_WIDTHS, -(-max(map(len, names), default=1) // _WIDTHS))


@lru_cache(maxsize=8192)
def _escaped(text: str) -> str:
    """Return a text as HTML; the same few words are on most tiles."""
    return str(escape(visible(text)))


class RowStyle(NamedTuple):
    """How the tiles of a map look, and where their links lead."""

    color: Color = "held"
    """What the colours mean."""
    colors: NamespaceColors = NO_COLORS
    """The colours of namespaces."""
    size: Size = "medium"
    """The size of the tiles; large ones have their words as text."""

    nodes: str = "/nodes/"
    """What the link to a node begins with."""
    gpu: str = "#gpu-"
    """What stands between the name of the node and the GPU."""


def row(row_id: str, node: str, several: Iterable[Tile], style: RowStyle) -> Markup:
    """Return a node, or a part of a node, as a row of the map.

    No template: that takes five times as long, for 40,000 tiles three seconds.
    """
    link = f"{style.nodes}{_escaped(node)}"
    to_gpu = f"{link}{style.gpu}"
    cells = "".join(
        f'<a class="tile {_escaped(classes(tile, style.color, style.colors))}" href="{to_gpu}{_escaped(tile.gpu)}"'
        + (f">{words}</a>\n" if style.size == "large" else f' aria-label="{words}"></a>\n')
        for tile in several
        for words in [_escaped(words_of(tile, style.color))]
    )
    return Markup(  # noqa: S704 - every text is escaped above and below
        f'<tr id="{_escaped(row_id)}" data-node="{_escaped(node)}" role="row">\n'
        f'<th scope="row" role="rowheader"><a href="{link}">{_escaped(node)}</a></th>\n'
        f'<td role="cell">\n{cells}</td>\n</tr>\n'
    )
