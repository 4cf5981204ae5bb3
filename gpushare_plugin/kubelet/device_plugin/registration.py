"""The registration of a resource with the kubelet, given up as soon as the asked kubelet is gone."""

import asyncio
from collections.abc import Awaitable

import grpc

from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET, Identity, PluginDirectory

API_VERSION = "v1beta1"
"""Version of the device-plugin API."""
_CLIENT_OPTIONS = (
    # With a shared pool, a new channel waits out the backoff of an earlier channel to the same path.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy meant for the network must not swallow a local socket.
    ("grpc.enable_http_proxy", 0),
)
_REGISTER = f"/{api.DESCRIPTOR.services_by_name['Registration'].full_name}/Register"
"""Called with bytes: the answer has no fields, and gRPC would print a traceback of an answer it cannot decode."""
_REGISTER_TIMEOUT = 15.0
"""Seconds; before the answer, the kubelet dials the plugin's socket for up to 10 seconds."""


class Registrar:
    """Asks the kubelet of a plugin directory to take a resource."""

    def __init__(self, directory: PluginDirectory, wake: asyncio.Event) -> None:
        """Ask the kubelet in `directory`; `wake` is set when a socket there may have changed."""
        self._directory = directory
        self._wake = wake

    async def register(self, resource_name: str, endpoint: str, kubelet: Identity) -> bool:
        """Register a resource, served on the socket named `endpoint`; return False if `kubelet` is gone meanwhile.

        Raises grpc.RpcError with the kubelet's reason for a rejection.
        """
        request = api.RegisterRequest(
            version=API_VERSION,
            endpoint=endpoint,
            resource_name=resource_name,
            options=api.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        address = f"unix:{self._directory.path / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_REGISTER)
            return await self._answered(call(request.SerializeToString(), timeout=_REGISTER_TIMEOUT), kubelet)

    async def _answered(self, call: Awaitable[bytes], kubelet: Identity) -> bool:
        """Wait for the answer of `kubelet`; return False if this kubelet is gone meanwhile."""
        answer = asyncio.ensure_future(call)
        try:
            while not answer.done():
                woken = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait({answer, woken}, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                if answer.done():
                    break  # `wake` stays set: the session still has to look at the change
                self._wake.clear()
                if self._directory.identity(KUBELET_SOCKET) != kubelet:
                    return False
            await answer
        finally:
            answer.cancel()
        return True
