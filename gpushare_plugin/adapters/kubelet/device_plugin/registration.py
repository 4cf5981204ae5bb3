"""Registering a resource with the kubelet, given up as soon as the kubelet that was asked is gone."""

import asyncio
from collections.abc import Awaitable

import grpc

from gpushare_plugin.adapters.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.adapters.kubelet.device_plugin.directory import KUBELET_SOCKET, Identity, PluginDirectory

API_VERSION = "v1beta1"
_CLIENT_OPTIONS = (
    # Without its own pool a new channel waits out the backoff of an earlier one to the same path.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy meant for the network must not swallow a local socket.
    ("grpc.enable_http_proxy", 0),
)
_REGISTER = f"/{api.DESCRIPTOR.services_by_name['Registration'].full_name}/Register"
"""Called with bytes: the answer has no fields, and gRPC would print a traceback of one that it cannot decode."""
_REGISTER_TIMEOUT = 15.0
"""Seconds; the kubelet dials us back for up to 10 before it answers."""


class Registrar:
    """Asks the kubelet of a plugin directory to take a resource; `wake` is set when a socket there may have changed."""

    def __init__(self, directory: PluginDirectory, wake: asyncio.Event) -> None:
        """Ask whichever kubelet is there."""
        self._directory = directory
        self._wake = wake

    async def register(self, resource_name: str, endpoint: str, kubelet: Identity) -> bool:
        """Register a resource, served on the socket named `endpoint`; False when `kubelet` is not there any more.

        Raises grpc.RpcError with the kubelet's reason to reject it.
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
        """Wait for the kubelet's answer; False when the kubelet that was asked is not there any more."""
        answer = asyncio.ensure_future(call)
        try:
            while not answer.done():
                woken = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait({answer, woken}, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                if answer.done():
                    break  # and whatever woke us besides is still to be looked at
                self._wake.clear()
                if self._directory.identity(KUBELET_SOCKET) != kubelet:
                    return False
            await answer
        finally:
            answer.cancel()
        return True
