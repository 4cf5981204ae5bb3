"""HTML that escapes all that a tenant can write: from templates, by the one door to Jinja, and the rows of maps."""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from gpushare_plugin.base.text import visible
from gpushare_plugin.base.version import __version__
from gpushare_plugin.web.tiles import Color, Tile, classes, color_of, reason_for, words_of


def _shown(value: object) -> object:
    """Return a value for a page: text without characters that people do not see."""
    return visible(value) if type(value) is str else value


def _counted(number: int, name: str) -> str:
    """Return a number of things, with the plural of their name."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


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
_environment.globals.update(
    classes=classes,
    color_of=color_of,
    counted=_counted,
    moment=_moment,
    reason_for=reason_for,
    version=__version__,
)


def rendered(template: str, **values: Any) -> str:
    """Return the text of a template with these values."""
    return _environment.get_template(template).render(values)


@lru_cache(maxsize=8192)
def _escaped(text: str) -> str:
    """Return a text as HTML; the same few words are on most tiles."""
    return str(escape(visible(text)))


def row(  # noqa: PLR0913, PLR0917 - the last two say where the links of a map lead
    row_id: str, node: str, several: Iterable[Tile], color: Color, pages: str = "/nodes/", gpu: str = "#gpu-"
) -> Markup:
    """Return a node, or a part of a node, as a row of the map.

    Links to nodes begin with `pages`; `gpu` stands between the name of the node and the GPU.
    No template: that takes five times as long, for 40,000 tiles three seconds.
    """
    link = f"{pages}{_escaped(node)}"
    cells = "".join(
        f'<a class="tile {_escaped(classes(tile, color))}" href="{link}{gpu}{_escaped(tile.gpu)}" tabindex="-1">'
        f"<span>{_escaped(words_of(tile, color))}</span></a>\n"
        for tile in several
    )
    return Markup(  # noqa: S704 - every text is escaped above and below
        f'<tr id="{_escaped(row_id)}" data-node="{_escaped(node)}" role="row">\n'
        f'<th scope="row" role="rowheader"><a href="{link}">{_escaped(node)}</a></th>\n'
        f'<td role="cell">\n{cells}</td>\n</tr>\n'
    )
