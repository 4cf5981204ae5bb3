"""What a request says of who asks: a bearer token, also as the password of HTTP Basic."""

import re
from base64 import b64decode

from aiohttp import web

_TOKEN = re.compile(r"[\x21-\x7e]+")
"""A token that a header can carry (RFC 6750, 2.1, has fewer characters; tokens of a file can have others)."""


def token_of(request: web.BaseRequest) -> str | None:
    """Return the bearer token of a request; None without a token, and for more than one `Authorization`.

    Browsers ask people for a name and a password (RFC 7617): any name will do, and the token is the password.
    """
    given = request.headers.getall("Authorization", ())
    if len(given) != 1:
        return None
    scheme, _, credentials = given[0].partition(" ")
    match scheme.lower():
        case "bearer":
            token = credentials.strip()
        case "basic":
            token = _password(credentials)
        case _:
            return None
    return token if _TOKEN.fullmatch(token) else None


def _password(credentials: str) -> str:
    try:
        return b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""
