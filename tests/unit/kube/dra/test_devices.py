"""Tests of `gpushare_plugin.kube.dra.devices`: the form in which the API server takes devices."""

from collections.abc import Iterator

import msgspec
import pytest

from gpushare_plugin.claims.device import Capacity, Device, SemanticVersion
from gpushare_plugin.kube.dra.devices import api_device, quantity
from gpushare_plugin.testing.cluster.dra.slices import problems
from tests.unit.kube.dra.gpus import DRIVER, FAULT, GIB, NODE, shared, whole


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (80 * GIB, "bytes", "80Gi"),
        (81559 * 1024**2, "bytes", "81559Mi"),
        (1536, "bytes", "1536"),
        (1024**5, "bytes", "1Pi"),
        (0, "bytes", "0"),
        (100, "number", "100"),
        (2000, "number", "2k"),
        (0, "number", "0"),
    ],
)
def test_quantities_are_canonical(amount: int, unit: str, text: str) -> None:
    """Otherwise the API server would write them in another way, and they would look changed; quantity.go."""
    assert quantity(amount, unit) == text  # type: ignore[arg-type] # a literal


def test_a_device_has_the_fields_of_the_api() -> None:
    """Names of fields: kubernetes, staging/src/k8s.io/api/resource/v1/types.go."""
    assert msgspec.json.decode(msgspec.json.encode(api_device(shared(2, taints=(FAULT,))))) == {
        "name": "gpu-2",
        "allowMultipleAllocations": True,
        "attributes": {
            "uuid": {"string": "GPU-2"},
            "driverVersion": {"version": "615.10.4"},
            "index": {"int": 2},
            "mig": {"bool": False},
        },
        "capacity": {
            "memory": {
                "value": "80Gi",
                "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
            },
            "compute": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}}},
        },
        "taints": [{"key": "gpushare/fault", "value": "xid-79", "effect": "NoSchedule"}],
    }


def test_a_device_for_one_claim_has_no_policy() -> None:
    """The API server refuses a policy there."""
    found = msgspec.json.decode(msgspec.json.encode(api_device(whole())))
    assert found["capacity"] == {"memory": {"value": "80Gi"}}
    assert "allowMultipleAllocations" not in found


def forms() -> Iterator[Capacity]:
    """Yield each form of capacity of a shared device."""
    yield Capacity(10 * GIB, "bytes", default=GIB, values=(GIB, 3 * GIB))
    yield Capacity(10 * GIB, "bytes", default=10 * GIB, least=GIB, step=GIB)
    yield Capacity(4, default=1)
    yield Capacity(4, default=None)


@pytest.mark.parametrize("capacity", list(forms()))
def test_the_api_server_takes_each_form_of_capacity(capacity: Capacity) -> None:
    """Values, a range with steps, and amounts without a policy."""
    device = Device("gpu-0", "GPU-0", shared=True, attributes={"v": SemanticVersion("1.2.3")})
    found = msgspec.json.decode(
        msgspec.json.encode(api_device(msgspec.structs.replace(device, capacities={"memory": capacity})))
    )
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [found]}
    assert list(problems({"spec": spec}, None)) == []
