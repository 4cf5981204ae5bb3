"""What the API server passes on to a pod, and from the pod to the client, as the subresource `pods/proxy` does."""

import aiohttp
from aiohttp import web

from gpushare_plugin.testing.cluster.store.objects import Store
from gpushare_plugin.testing.cluster.store.place import Place
from gpushare_plugin.testing.cluster.verbs import status

_PASSED_ON = ("Content-Type", "Content-Encoding", "Location")
"""The headers of a pod's answer that the client gets."""


async def proxied(request: web.Request, store: Store, place: Place) -> web.StreamResponse:
    """Return what the pod `NAME:PORT` of a place answers to a GET, also where that leads elsewhere."""
    name, _, port = place.name.partition(":")
    found = store.find(place.collection.path, name)
    if not found:
        return status(404, f'pods "{name}" not found', reason="NotFound")
    path = request.rel_url.raw_path.partition("/proxy")[2]
    address = f"http://{found[0]['status']['podIP']}:{port}{path}"
    try:
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.get(address, allow_redirects=False) as response,
        ):
            headers = {name: response.headers[name] for name in _PASSED_ON if name in response.headers}
            answer = web.StreamResponse(status=response.status, headers=headers)
            await answer.prepare(request)
            async for chunk in response.content.iter_any():
                await answer.write(chunk)
            return answer
    except aiohttp.ClientConnectorError as error:
        return status(503, f"error trying to reach service: {error}", reason="ServiceUnavailable")
