"""Nodes of the cluster whose cards are divided into MIG instances: by the real `gpushare mig`, through one stand-in."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import yaml

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.gpus.mig_driver import MigPart
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.gpus.nvml.partitions import NvmlPartitions
from gpushare_plugin.kube.client import Client
from gpushare_plugin.mig.exchange import MigRoot, MigStatus
from gpushare_plugin.mig.reconciler import MigPace
from gpushare_plugin.mig.service import serve
from gpushare_plugin.node import daemon as app
from gpushare_plugin.slices.slice import SliceKind
from tests.cluster.worker import Lifetime, NodeKind, Worker

MIG = "nvidia.com/mig-{}"
PACE = MigPace(look=0.02, ask=0.5, first=0.05, most=0.2)
NVML_THREADS = frozenset({"nvml", "gpu-inventory", "gpu-usage", "mig"})


class OwnCards(NvmlSource):
    """Some of the cards, and none of their events: the thread that waits for these would outlive the test."""

    def __init__(self, folder: Path, uuids: Collection[str]) -> None:
        """Have the cards with these UUIDs; of the kernel nothing is known in `folder`."""
        super().__init__(folder / "driver-root", folder / "sys", folder / "proc")
        self._own = frozenset(uuids)

    def read(self) -> Inventory:
        """Return these cards and their instances."""
        found = super().read()
        return replace(
            found,
            cards=tuple(card for card in found.cards if card.uuid in self._own),
            instances=tuple(each for each in found.instances if each.card in self._own),
            failed=tuple(each for each in found.failed if each.uuid in self._own),
        )

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Return at once."""


class OwnPartitions(NvmlPartitions):
    """Divides some of the cards, and takes note if that takes an instance from a pod."""

    def __init__(self, folder: Path, uuids: Collection[str], used: Callable[[], Collection[str]]) -> None:
        """Divide the cards with these UUIDs; `used` returns the UUIDs of the instances that pods have."""
        super().__init__(folder / "driver-root", folder / "sys", folder / "proc")
        self._own = frozenset(uuids)
        self._used = used
        self.taken: list[MigPart] = []
        """Instances that were destroyed while pods had them."""

    def cards(self) -> tuple[str, ...]:
        """Return the UUIDs of these cards."""
        return tuple(uuid for uuid in super().cards() if uuid in self._own)

    def destroy(self, uuid: str, number: int) -> None:
        """Destroy a GPU instance."""
        used = self._used()
        self.taken += [part for part in self.parts(uuid) if part.number == number and {*part.uuids} & {*used}]
        super().destroy(uuid, number)

    def parts(self, uuid: str) -> tuple[MigPart, ...]:
        """Return the GPU instances of a card."""
        return self.read(uuid).parts


class MigWorker(Worker):
    """A node whose cards, those of its kind's inventory, are divided as annotations of the Node want."""

    divided_by: SliceKind = "mig"

    def __init__(self, name: str, kind: NodeKind, folder: Path, client: Client, kubeconfig: Path) -> None:
        """Have a folder of its own; nothing runs yet."""
        super().__init__(name, kind, folder, client, kubeconfig)
        self.cards = tuple(card.uuid for card in kind.inventory.cards)
        self.driver = OwnPartitions(folder, self.cards, self.used)
        self._mig_root = MigRoot(folder / "mig")
        self._file = folder / "config.yaml"
        self.configure({})
        self._specification = replace(
            self._specification,
            source=lambda _: OwnCards(folder, self.cards),
            mig_root=self._mig_root.path,
            ask_every=0.05,
        )
        self._root = app.NodeDaemon(self._specification)
        self._mig: asyncio.Task[None] | None = None

    def configure(self, partitioning: Mapping[str, Any]) -> None:
        """Replace the section `partitioning` of the config."""
        new = self._file.with_suffix(".new")
        health = {"goodProbes": 1, "probeSeconds": 0.05}
        new.write_text(yaml.safe_dump({"version": "v1", "health": health, "partitioning": dict(partitioning)}))
        new.replace(self._file)

    @property
    def status(self) -> MigStatus:
        """What `gpushare mig` reports."""
        return read_message(self._mig_root.status, MigStatus) or MigStatus()

    def used(self) -> frozenset[str]:
        """Return the UUIDs of the instances that containers were started with."""
        return frozenset(
            id_
            for pod in list(self.admitted.values())
            for container in pod.containers.values()
            for ids in container.device_ids.values()
            for id_ in ids
        )

    def parts(self) -> dict[str, tuple[str, MigPart]]:
        """Return the card and the GPU instance of each MIG instance, by its UUID."""
        return {
            instance: (card, part) for card in self.cards for part in self.driver.parts(card) for instance in part.uuids
        }

    @asynccontextmanager
    async def working(self, lifetime: Lifetime) -> AsyncIterator[None]:
        """Run `gpushare mig` beside daemon and kubelet."""
        async with super().working(lifetime):
            self.start_mig()
            try:
                yield
            finally:
                await self.stop_mig()

    def start_mig(self) -> None:
        """Start `gpushare mig`."""
        self._mig = asyncio.create_task(serve(self._mig_root, self.driver, PACE))

    async def stop_mig(self) -> None:
        """End `gpushare mig` wherever it is."""
        if self._mig is not None:
            self._mig.cancel()
            await asyncio.wait([self._mig])
            self._mig = None


def kinds(folder: Path, counts: Mapping[str, int]) -> dict[str, NodeKind]:
    """Return partitioned nodes, by name, that have so many of the cards each, in order."""
    cards = iter(NvmlSource(folder / "driver-root", folder / "sys", folder / "proc").read().cards)
    return {
        name: NodeKind(Inventory(cards=tuple(next(cards) for _ in range(count))), {}, partitioned=True)
        for name, count in counts.items()
    }


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Wait at the end for the calls of NVML that have begun: they must not go on in the test that follows."""
    try:
        yield
    finally:
        for thread in threading.enumerate():
            if thread.name in NVML_THREADS:
                thread.join()
