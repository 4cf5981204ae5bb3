"""The device list of a resource as it goes over the wire, put together from one piece a GPU."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import groupby
from operator import attrgetter

from gpushare_plugin.adapters.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import Unit


class DeviceList:
    """Serialises the device lists of one resource; the units of a GPU are serialised once."""

    def __init__(self) -> None:
        """Start with nothing serialised."""
        self._pieces: dict[str, _Piece] = {}
        self._retired: Mapping[str, Unit] = {}
        self._retired_bytes = b""

    def of(self, resource: Resource) -> bytes:
        """Return a `ListAndWatchResponse`: all units with health and NUMA node, retired ones Unhealthy."""
        known, self._pieces = self._pieces, {}
        for gpu, units in resource.units.by_gpu.items():
            piece = known.get(gpu.uuid)
            self._pieces[gpu.uuid] = piece if piece is not None and piece.units is units else _Piece(units)
        # The list is one repeated field, and such fields are joined by joining their bytes.
        return b"".join(
            (
                *(
                    piece.unhealthy if uuid in resource.unhealthy else piece.healthy
                    for uuid, piece in self._pieces.items()
                ),
                self._retired_units(resource.retired),
            )
        )

    def _retired_units(self, retired: Mapping[str, Unit]) -> bytes:
        if retired is not self._retired:
            self._retired, self._retired_bytes = retired, _serialised(retired.values(), "Unhealthy")
        return self._retired_bytes


class _Piece:
    """The units of one GPU as they stand in a list."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units

    @cached_property
    def healthy(self) -> bytes:
        return _serialised(self.units, "Healthy")

    @cached_property
    def unhealthy(self) -> bytes:
        return _serialised(self.units, "Unhealthy")


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
