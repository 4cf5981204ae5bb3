"""Calls from the kubelet to plugins: whatever becomes of a call but an answer has the words of gRPC for Go."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import grpc

from gpushare_plugin.testing.kubelet.shared.errors import PluginCallError

Answer = TypeVar("Answer")

OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""The option of a channel that dials again; a shared pool would return the connection of the channel before."""


async def answered(call: Awaitable[Answer]) -> Answer:
    """Wait for `call`; whatever becomes of it but an answer is a PluginCallError."""
    try:
        return _decoded(await call)
    except grpc.aio.AioRpcError as error:
        raise PluginCallError(error.code(), error.details()) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody cancelled us: the connection was closed under the call.
        raise PluginCallError(grpc.StatusCode.CANCELLED, "grpc: the client connection is closing") from error


def _decoded(answer: Answer | None) -> Answer:
    """Reject what gRPC returns for bytes that are no message of the right kind: None."""
    if answer is None:
        raise PluginCallError(grpc.StatusCode.INTERNAL, "grpc: failed to unmarshal the received message")
    return answer
