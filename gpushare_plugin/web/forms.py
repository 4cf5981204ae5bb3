"""Forms that browsers post: only from pages of this server, and of bounded size and time."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from gpushare_plugin.base.errors import GpushareError

_LONGEST = 10.0
"""Seconds in which a whole form has to arrive."""
_MOST_FIELDS = 8
_KIND = "application/x-www-form-urlencoded"
_LONGEST_ESCAPE = 3
"""Bytes of a byte in a form."""


class RefusedFormError(GpushareError):
    """A form is not taken; `status` is the HTTP status of the answer."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        """Refuse with an HTTP status and a reason."""
        super().__init__(message)
        self.status = status


async def form_of(request: web.BaseRequest, largest: int) -> Mapping[str, str]:
    """Return the fields of a form whose values have `largest` bytes together at most; raises RefusedFormError."""
    if not _is_of_own_page(request):
        raise RefusedFormError(
            HTTPStatus.FORBIDDEN, "a page from elsewhere sent the form: open this page, and send it there"
        )
    if request.content_type != _KIND:
        raise RefusedFormError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{request.content_type} found, {_KIND} expected")
    try:
        async with asyncio.timeout(_LONGEST):
            body = await _body(request, largest * _LONGEST_ESCAPE)
    except TimeoutError as error:
        raise RefusedFormError(
            HTTPStatus.REQUEST_TIMEOUT, f"the form took longer than {_LONGEST:.0f} seconds"
        ) from error
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise RefusedFormError(HTTPStatus.BAD_REQUEST, "the form cannot be read: send the form of this page") from error


def _is_of_own_page(request: web.BaseRequest) -> bool:
    """Return whether the browser says that a page of this server sent the request; programs say nothing.

    Source: Fetch Metadata Request Headers (W3C), `Sec-Fetch-Site`; browsers without the header send `Origin`.
    """
    if (site := request.headers.get("Sec-Fetch-Site")) is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("Host", "")


async def _body(request: web.BaseRequest, largest: int) -> bytes:
    found = bytearray()
    async for part, _ in request.content.iter_chunks():
        found += part
        if len(found) > largest:
            raise RefusedFormError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the form has more than {largest:,} bytes: send less"
            )
    return bytes(found)
