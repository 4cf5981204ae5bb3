"""What a request says of who asks: a bearer token, also as the password of HTTP Basic, or the word of a proxy."""

import re
from base64 import b64decode
from collections.abc import Iterator

from aiohttp import web

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.kube.reviews import User

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


_MOST_GROUPS = 256
_LONGEST_NAME = 1024
_EVERYBODY = "system:authenticated"


class TrustedProxy(Struct, frozen=True):
    """A proxy that has a client certificate of the authority that the server verifies, and says who asks.

    The headers are those that kube-apiserver takes from its own proxies: X-Remote-User and, once for each group,
    X-Remote-Group (kubernetes.io: Authenticating, "Authenticating Proxy"). From anybody else they mean nothing.
    """

    names: tuple[str, ...] = ()
    """The common names that the certificate of the proxy may have; empty for any name."""

    def user_of(self, request: web.BaseRequest) -> User | None:
        """Return the user that the proxy names; None where the proxy did not ask, or names nobody."""
        if not self._asks(request):
            return None
        users, groups = (request.headers.getall(f"X-Remote-{each}", ()) for each in ("User", "Group"))
        if len(users) != 1 or len(groups) > _MOST_GROUPS or not all(map(_is_name, (*users, *groups))):
            return None
        # The API server, too, adds this group to everybody whom it knows.
        return User(users[0], groups=tuple(dict.fromkeys((*groups, _EVERYBODY))))

    def _asks(self, request: web.BaseRequest) -> bool:
        # Python tells the certificate of a client only after it was verified (ssl.SSLSocket.getpeercert).
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        if not certificate:
            return False
        return not self.names or not set(self.names).isdisjoint(_common_names(certificate))


def _common_names(certificate: dict[str, tuple[tuple[tuple[str, str], ...], ...]]) -> Iterator[str]:
    for part in certificate.get("subject", ()):
        yield from (value for key, value in part if key == "commonName")


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_NAME and text.isprintable()
