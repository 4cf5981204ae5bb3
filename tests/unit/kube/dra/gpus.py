"""GPUs as a node offers them to claims, for these tests."""

from typing import Any

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.device import Attribute, Capacity, Device, DeviceTaint, SemanticVersion
from gpushare_plugin.testing.cluster import ApiServer

DRIVER = "gpu.example.com"
NODE = "gpu-1"
GROUP = "/apis/resource.k8s.io/v1"
RESOURCE_SLICES = f"{GROUP}/resourceslices"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
NODES = "/api/v1/nodes"
GIB = 1024**3

FAULT = DeviceTaint("gpushare/fault", "xid-79", "NoSchedule")

Object = dict[str, Any]


def shared(number: int = 0, **more: Any) -> Device:
    """Return a GPU of 80 GiB that claims share in steps of 1 GiB."""
    capacities = {
        "memory": Capacity(80 * GIB, "bytes", default=80 * GIB, least=GIB, step=GIB),
        "compute": Capacity(100, default=0, least=0, step=1),
    }
    attributes: dict[str, Attribute] = {
        "uuid": f"GPU-{number}",
        "driverVersion": SemanticVersion("615.10.4"),
        "index": number,
        "mig": False,
    }
    device = Device(f"gpu-{number}", f"GPU-{number}", shared=True, attributes=attributes, capacities=capacities)
    return replace(device, **more)


def whole(number: int = 0, **more: Any) -> Device:
    """Return a GPU for one claim."""
    memory = {"memory": Capacity(80 * GIB, "bytes")}
    return replace(shared(number), shared=False, capacities=memory, **more)


def node(server: ApiServer) -> Object:
    """Create the Node, or create the Node anew."""
    if server.store.find(NODES, NODE):
        server.store.delete(NODES, NODE)
    return server.store.create(NODES, {"metadata": {"name": NODE}})


def devices(server: ApiServer) -> list[Object]:
    """Return all devices in the API, in the order of the scheduler."""
    found = sorted(server.store.find(RESOURCE_SLICES), key=lambda each: str(each["metadata"]["name"]))
    return [device for each in found for device in each["spec"].get("devices") or ()]


def names(server: ApiServer) -> list[str]:
    """Return the names of all devices in the API, in the order of the scheduler."""
    return [each["name"] for each in devices(server)]
