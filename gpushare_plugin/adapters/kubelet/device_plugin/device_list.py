"""The device list of a resource as it goes over the wire, put together from one piece a GPU."""

from collections.abc import Iterable, Sequence
from functools import cache, cached_property

from gpushare_plugin.adapters.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import Unit


class DeviceList:
    """Serialises the device lists of one resource; what it did for the units of a GPU it does not do again."""

    def __init__(self) -> None:
        """Begin knowing nothing."""
        self._pieces: dict[str, _Piece] = {}

    def of(self, resource: Resource) -> bytes:
        """Return a `ListAndWatchResponse`: all units with health and NUMA node, those on their way out Unhealthy."""
        known, self._pieces = self._pieces, {}
        for gpu, units in resource.shares.items():
            piece = known.get(gpu.uuid)
            self._pieces[gpu.uuid] = piece if piece is not None and piece.units is units else _Piece(units)
        # The list is one repeated field, and such fields are joined by joining their bytes.
        return b"".join(
            (
                *(
                    piece.unhealthy if uuid in resource.unhealthy else piece.healthy
                    for uuid, piece in self._pieces.items()
                ),
                _serialised(resource.retired.values(), "Unhealthy"),
            )
        )


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
    return api.ListAndWatchResponse(devices=[_device(unit, health) for unit in units]).SerializeToString()


def _device(unit: Unit, health: str) -> api.Device:
    if unit.numa_node is None:
        return api.Device(ID=unit.id, health=health)
    return api.Device(ID=unit.id, health=health, topology=_topology(unit.numa_node))


@cache
def _topology(numa_node: int) -> api.TopologyInfo:
    return api.TopologyInfo(nodes=[api.NUMANode(ID=numa_node)])
