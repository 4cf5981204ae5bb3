"""The files beside the pages: the style sheet, the script and the icon, which browsers keep until a file changes."""

import hashlib
from collections.abc import Mapping
from importlib.resources import files

from gpushare_plugin.base.structs import Struct

_FOLDER = "/static/"
_KINDS = {"style.css": "text/css", "updates.js": "text/javascript", "icon.svg": "image/svg+xml"}


class StaticFile(Struct, frozen=True):
    """A file beside the pages."""

    kind: str
    """The media type."""
    body: bytes
    """The content."""
    address: str
    """The path, with a query that is another one after every change of the content: a browser may keep the file."""


def _read(name: str, kind: str) -> StaticFile:
    body = (files(__package__) / "static" / name).read_bytes()
    return StaticFile(kind, body, f"{_FOLDER}{name}?{hashlib.sha256(body).hexdigest()[:16]}")


STATIC: Mapping[str, StaticFile] = {_FOLDER + name: _read(name, kind) for name, kind in _KINDS.items()}
"""Each file by its path."""
