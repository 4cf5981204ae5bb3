"""Who may see the pages: the person at the terminal, by a token that is good once."""

import secrets
from collections.abc import Mapping
from typing import Protocol

from aiohttp import web

from gpushare_plugin.web.viewer import EVERYTHING, Viewer

_TOKEN_BYTES = 32
_HOSTS = ("127.0.0.1", "localhost")


class Access(Protocol):
    """Says who asks for a page."""

    async def viewer(self, request: web.BaseRequest) -> Viewer | web.Response:
        """Return the person who asks, or the answer for a person who may not see the pages."""
        ...


class TerminalAccess:
    """Lets in the person at the terminal: a token in the address becomes a cookie, and is then worth nothing.

    Requests for other hosts than those of the address are refused: else a page from elsewhere could reach this server
    through a name that leads to the loopback address.
    """

    def __init__(self) -> None:
        """Make the token."""
        self._token: str | None = secrets.token_urlsafe(_TOKEN_BYTES)
        self._session = secrets.token_urlsafe(_TOKEN_BYTES)

    def address(self, port: int) -> str:
        """Return the address to open once, of a server at `port` of the loopback address."""
        return f"http://127.0.0.1:{port}/?token={self._token}"

    async def viewer(self, request: web.BaseRequest) -> Viewer | web.Response:
        """Return the person at the terminal, or a refusal."""
        port = _own_port(request)
        if request.headers.get("Host", "") not in {f"{host}:{port}" for host in _HOSTS}:
            return web.Response(status=421, text="this page answers at its own address only\n")
        cookie = f"gpushare-{port}"  # browsers send a cookie to all ports of a host
        if _same(request.cookies, cookie, self._session):
            return EVERYTHING
        if self._token is not None and _same(request.query, "token", self._token):
            self._token = None
            answer = web.Response(status=303, headers={"Location": request.path})
            answer.set_cookie(cookie, self._session, httponly=True, samesite="Strict")
            return answer
        remedy = "the address that `gpushare web` printed is good once; start `gpushare web` again for a new one"
        return web.Response(status=403, text=f"not allowed: {remedy}\n")


def _own_port(request: web.BaseRequest) -> int:
    name = request.transport.get_extra_info("sockname") if request.transport else None
    return int(name[1]) if name else 0


def _same(given: Mapping[str, str], name: str, expected: str) -> bool:
    """Return whether the caller gave what is expected; aiohttp has bytes that are not UTF-8 as lone surrogates."""
    return secrets.compare_digest(given.get(name, "").encode(errors="surrogateescape"), expected.encode())
