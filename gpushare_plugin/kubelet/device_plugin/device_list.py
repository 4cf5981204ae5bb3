"""The serialised device list of a resource, put together from one piece per GPU."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter

from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, Unit
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api

_HEALTHY = "Healthy"
_UNHEALTHY = "Unhealthy"
_UNSAID = ""
"""No health at all, which takes no bytes: for the kubelet, only a unit with the health `Healthy` is healthy.

Source: pkg/kubelet/cm/devicemanager/manager.go, for the units counted by the kubelet (`genericDeviceUpdateCallback`)
and for the units shown in the status of a pod (`UpdateAllocatedResourcesStatus`).
"""


class SerialisedDevices:
    """Serialises the device lists of one resource; unchanged units of a GPU are serialised only once."""

    def __init__(self) -> None:
        """Start with nothing serialised."""
        self._pieces: dict[str, _Piece] = {}
        self._retired: Mapping[str, Unit] = {}
        self._retired_piece = _Piece(())

    def of(self, resource: Resource) -> bytes:
        """Return a `ListAndWatchResponse`: all units with health and NUMA node, the retired units as Unhealthy.

        `Unhealthy` is the longer word. If the word makes the list longer than the kubelet's limit, unhealthy units are
        listed without a health. No unit is left out, because the kubelet forgets the holder of an unlisted unit. As a
        result, a list is longer than the limit only if the list of the same units, all healthy, is too.
        """
        known, self._pieces = self._pieces, {}
        for gpu, units in resource.units.by_gpu.items():
            piece = known.get(gpu.uuid)
            self._pieces[gpu.uuid] = piece if piece is not None and piece.units is units else _Piece(units)
        if resource.retired is not self._retired:
            self._retired, self._retired_piece = resource.retired, _Piece(tuple(resource.retired.values()))
        whole = self._joined(resource.unhealthy, _UNHEALTHY)
        return whole if len(whole) <= KUBELET_MESSAGE_LIMIT else self._joined(resource.unhealthy, _UNSAID)

    def _joined(self, unhealthy: Collection[str], word: str) -> bytes:
        """Return the list, with `word` as the health of unhealthy units."""
        # The list is one repeated field: joining the bytes of two lists joins the lists.
        pieces = (piece.saying(word if uuid in unhealthy else _HEALTHY) for uuid, piece in self._pieces.items())
        return b"".join((*pieces, self._retired_piece.saying(word)))


class _Piece:
    """A part of a device list: the units of one GPU, or the retired units."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self._bytes: dict[str, bytes] = {}

    def saying(self, health: str) -> bytes:
        """Return the entries of the units, all with this health."""
        if health not in self._bytes:
            self._bytes[health] = _serialised(self.units, health)
        return self._bytes[health]


def _serialised(units: Iterable[Unit], health: str) -> bytes:
    """Return the entries of `units` in the bytes of protobuf; units that differ only in the ID are built together.

    Every length is one byte: see `core.unit.wire_size`.
    """
    entries = []
    for numa_node, alike in groupby(units, attrgetter("numa_node")):
        rest = _all_but_id(health, numa_node)
        for length, ids in groupby(map(attrgetter("id"), alike), len):
            start = f"{_FIELD_1}{chr(2 + length + len(rest))}{_FIELD_1}{chr(length)}"
            entries.append(f"{start}{(rest + start).join(ids)}{rest}")
    return "".join(entries).encode("latin-1")


_FIELD_1 = "\x0a"
"""The tag before the length of a message's first field: `devices` in the list, `ID` in a device."""


@cache
def _all_but_id(health: str, numa_node: int | None) -> str:
    """Return the bytes of a device after the ID, as text."""
    topology = None if numa_node is None else api.TopologyInfo(nodes=[api.NUMANode(ID=numa_node)])
    return api.Device(health=health, topology=topology).SerializeToString().decode("latin-1")
