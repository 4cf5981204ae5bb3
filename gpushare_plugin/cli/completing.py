"""Names in a cluster that complete what a person types: namespaces, pods and nodes.

A shell asks at a press of a key. Where the API server does not answer soon, or refuses, nothing is completed and
nothing printed. Only the resolver of names can take longer than that.
"""

import asyncio
from collections.abc import Callable
from urllib.parse import quote

import click

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.text import visible
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.whole_cluster.reading import PATIENT

_WITHIN = 3.0
"""Seconds after which a person has typed on."""


def namespaces(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the namespaces that begin with `incomplete`."""
    return _names(context, incomplete, lambda _: "/api/v1/namespaces")


def pods(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the pods that begin with `incomplete`, of the namespace that was typed before, or of the context."""
    return _names(context, incomplete, lambda namespace: f"/api/v1/namespaces/{quote(namespace, safe='')}/pods")


def nodes(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the nodes that begin with `incomplete`."""
    return _names(context, incomplete, lambda _: NODES)


def _names(context: click.Context, incomplete: str, path: Callable[[str], str]) -> list[str]:
    """Return the names that begin with `incomplete` of the objects at `path`, which is given the namespace."""

    async def read() -> list[str]:
        async with (
            asyncio.timeout(_WITHIN),
            Client(context.params.get("kubeconfig"), PATIENT, context=context.params.get("context")) as client,
        ):
            found, _ = await client.list(path(context.params.get("namespace") or await client.namespace()))
        return [str(each["metadata"]["name"]) for each in found]

    try:
        names = asyncio.run(read())
    except (GpushareError, OSError):  # TimeoutError is an OSError
        return []
    # A shell prints what it completes; the API server rejects names with characters that are not seen, so none is lost.
    return sorted(name for name in names if name.startswith(incomplete) and visible(name) == name)
