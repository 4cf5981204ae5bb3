"""GPUs cordoned by a ConfigMap, on nodes of Aliyun's plugin; on its own node gpushare's daemon reads the ConfigMap."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from gpushare_plugin.kube import names
from gpushare_plugin.kube.client import Client, configmaps
from gpushare_plugin.kube.collection import Collection, Gone, Listed, Put
from gpushare_plugin.kube.objects import ConfigMap

EVERY_NODE = "*"
"""The name that stands for the ConfigMaps of all nodes."""


class Cordons:
    """The GPUs listed by the ConfigMaps of nodes, as far as RBAC allows reading; without nodes, no ConfigMap is read.

    RBAC knows no patterns: the right to read the ConfigMaps of all nodes covers every ConfigMap of the namespace.
    """

    def __init__(self, client: Client, nodes: Sequence[str], changed: Callable[[str], None]) -> None:
        """Follow the ConfigMaps of `nodes`; `changed` is called with the name of a node whose list has changed."""
        self._changed = changed
        self._listed: dict[str, str] = {}
        self._answered = {node: asyncio.Event() for node in nodes}
        self._collections = {node: self._collection(client, node) for node in nodes}

    def of(self, node: str) -> str:
        """Return the list in the ConfigMap of a node as text, empty without a ConfigMap."""
        return self._listed.get(names.cordon_configmap(node), "")

    async def complete(self) -> None:
        """Wait until each ConfigMap has been listed, or the API server has forbidden the list."""
        for event in self._answered.values():
            await event.wait()

    async def follow(self) -> None:
        """Follow all ConfigMaps; runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for node in self._collections:
                group.create_task(self._follow(node))

    async def _follow(self, node: str) -> None:
        async with aclosing(self._collections[node].changes()) as changes:
            async for change in changes:
                match change:
                    case Put(found):
                        self._put(found.metadata.name, found.data.get(names.CORDON_KEY, ""))
                    case Gone(name=name):
                        self._put(name, "")
                    case Listed():
                        self._answered[node].set()

    def _put(self, configmap: str, text: str) -> None:
        node = names.cordoned_node(configmap)
        if node is not None and text != self._listed.get(configmap, ""):
            self._listed[configmap] = text
            self._changed(node)

    def _collection(self, client: Client, node: str) -> Collection[ConfigMap]:
        return Collection(
            client,
            configmaps(names.CORDON_NAMESPACE),
            ConfigMap,
            selector="" if node == EVERY_NODE else f"metadata.name={names.cordon_configmap(node)}",
            consequence="GPUs that a ConfigMap cordons on nodes of Aliyun's plugin are promised as before",
            forbidden=self._answered[node].set,
        )
