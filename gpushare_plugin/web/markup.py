"""HTML from templates: the one door to Jinja, which escapes everything that a tenant can write."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from gpushare_plugin.base.text import visible
from gpushare_plugin.base.version import __version__
from gpushare_plugin.web.tiles import classes, color_of, reason_for, words_of


def _shown(value: object) -> object:
    """Return a value for a page: text without characters that people do not see."""
    return visible(value) if type(value) is str else value


def _counted(number: int, name: str) -> str:
    """Return a number of things, with the plural of their name."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


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
    reason_for=reason_for,
    version=__version__,
    words_of=words_of,
)


def rendered(template: str, **values: Any) -> str:
    """Return the text of a template with these values."""
    return _environment.get_template(template).render(values)
