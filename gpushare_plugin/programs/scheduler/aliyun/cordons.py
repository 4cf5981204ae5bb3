"""GPUs of Aliyun's plugin that a ConfigMap cordons: nodes without our daemon, which reads it itself."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from gpushare_plugin.adapters.cluster import names
from gpushare_plugin.adapters.cluster.client import Client, configmaps
from gpushare_plugin.adapters.cluster.collection import Collection, Gone, Listed, Put
from gpushare_plugin.adapters.cluster.objects import ConfigMap

EVERY_NODE = "*"
"""Stands for the ConfigMaps of all nodes."""


class Cordons:
    """What the ConfigMaps of nodes list, as far as they may be read; without any node, none is.

    RBAC knows no patterns: who may read the ConfigMaps of all nodes may read all of their namespace.
    """

    def __init__(self, client: Client, nodes: Sequence[str], changed: Callable[[str], None]) -> None:
        """Follow those of `nodes`, and call `changed` with the name of a node when its list is another one."""
        self._changed = changed
        self._listed: dict[str, str] = {}
        self._answered = {node: asyncio.Event() for node in nodes}
        self._collections = {node: self._collection(client, node) for node in nodes}

    def of(self, node: str) -> str:
        """Return what the ConfigMap of a node lists; nothing where there is none."""
        return self._listed.get(names.cordon_configmap(node), "")

    async def complete(self) -> None:
        """Wait until everything has been listed, or may not be."""
        for event in self._answered.values():
            await event.wait()

    async def follow(self) -> None:
        """Follow all of them; runs until cancelled."""
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
