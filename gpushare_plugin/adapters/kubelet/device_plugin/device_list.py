"""The device list of a resource as it goes over the wire, put together from one piece a GPU."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter

from gpushare_plugin.adapters.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import KUBELET_MESSAGE_LIMIT, Unit

_HEALTHY = "Healthy"
_UNHEALTHY = "Unhealthy"
_UNSAID = ""
"""No health at all, which takes no bytes: to the kubelet a unit is healthy only if its health is `Healthy`.

So says pkg/kubelet/cm/devicemanager/manager.go, of the units that it counts (`genericDeviceUpdateCallback`) and of
those that the status of a pod shows (`UpdateAllocatedResourcesStatus`).
"""


class SerialisedDevices:
    """Serialises the device lists of one resource; the units of a GPU are serialised once."""

    def __init__(self) -> None:
        """Start with nothing serialised."""
        self._pieces: dict[str, _Piece] = {}
        self._retired: Mapping[str, Unit] = {}
        self._retired_piece = _Piece(())

    def of(self, resource: Resource) -> bytes:
        """Return a `ListAndWatchResponse`: all units with health and NUMA node, retired ones Unhealthy.

        `Unhealthy` is the longer word. Where it makes the list longer than the kubelet takes, the health of unhealthy
        units is left out; no unit is, because the kubelet forgets who holds a unit that is not listed. So a list is
        never longer than that of the same units when all of them are healthy, or than the limit.
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
        """Return the list in which units that are not healthy have this `word` for it."""
        # The list is one repeated field, and such fields are joined by joining their bytes.
        pieces = (piece.saying(word if uuid in unhealthy else _HEALTHY) for uuid, piece in self._pieces.items())
        return b"".join((*pieces, self._retired_piece.saying(word)))


class _Piece:
    """Units as they stand in a list: those of one GPU, or the retired ones."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self._bytes: dict[str, bytes] = {}

    def saying(self, health: str) -> bytes:
        """Return the entries of the units, which all have this health."""
        if health not in self._bytes:
            self._bytes[health] = _serialised(self.units, health)
        return self._bytes[health]


def _serialised(units: Iterable[Unit], health: str) -> bytes:
    """Return the entries of `units`: what protobuf makes of them one by one, made of all that differ in the ID alone.

    Every length is one byte, see `model.unit.wire_size`.
    """
    entries = []
    for numa_node, alike in groupby(units, attrgetter("numa_node")):
        rest = _all_but_id(health, numa_node)
        for length, ids in groupby(map(attrgetter("id"), alike), len):
            start = f"{_FIELD_1}{chr(2 + length + len(rest))}{_FIELD_1}{chr(length)}"
            entries.append(f"{start}{(rest + start).join(ids)}{rest}")
    return "".join(entries).encode("latin-1")


_FIELD_1 = "\x0a"
"""What stands before the length of the first field of a message: of `devices` in the list, of `ID` in a device."""


@cache
def _all_but_id(health: str, numa_node: int | None) -> str:
    """Return the bytes of a device after its ID, as text."""
    topology = None if numa_node is None else api.TopologyInfo(nodes=[api.NUMANode(ID=numa_node)])
    return api.Device(health=health, topology=topology).SerializeToString().decode("latin-1")
