"""What kubelets from 1.25 to 1.37 record and answer is read, whatever else a version records and answers.

The forms are those of Kubernetes' sources, written down here as data: pkg/kubelet/cm/devicemanager/checkpoint and
staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto at v1.25.10, v1.26.5, v1.27.7, v1.28.3, v1.29.1, v1.30.1,
v1.31.14, v1.32.13, v1.33.13, v1.34.9, v1.35.6 and v1.36.2, and after that release on the main branch (`BootID`, and the
cpu_ids and memory of a whole pod, which Kubernetes documents for 1.37).
"""

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.core.holding import Holding
from gpushare_plugin.kubelet.allocations.checkpoint import CHECKPOINT, CheckpointError, read_listed, read_recorded
from gpushare_plugin.kubelet.allocations.pod_resources import healthy_devices, list_pods
from tests.unit.kubelet.serving import answering_bytes, read_held

GPU_MEM = "aliyun.com/gpu-mem"
UID = "8d2b2c6e-6a3c-4b7e-9d59-1f2f6f0d8a11"


# ---------------------------------------------------------------------- the checkpoint


def entry(ids: Any) -> dict[str, Any]:
    """Return the record of one resource of a container; kubelets record the plugin's answer in base64."""
    answer = base64.b64encode(b"\x0a\x0a\x0a\x04NAME\x12\x02id").decode()
    return {"PodUID": UID, "ContainerName": "main", "ResourceName": GPU_MEM, "DeviceIDs": ids, "AllocResp": answer}


def record(directory: Path, entries: Any, **more: Any) -> None:
    """Write a checkpoint; kubelets compute `Checksum` from how Go prints the data, so that nobody else can check it."""
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {GPU_MEM: ["a-0", "a-1", "b-0"]}}
    (directory / CHECKPOINT).write_text(json.dumps({"Data": data, "Checksum": 3_405_691_582, **more}))


@pytest.mark.parametrize(
    "ids", [{"-1": ["a-0", "b-0"]}, {"0": ["a-0"], "1": ["b-0"]}, {"0": ["a-0", "b-0"], "1": ["b-0"]}]
)
@pytest.mark.parametrize("more", [{}, {"BootID": "e0c8a4f3-7f0f-4f5b-8a3e-0f3a3c1f9c55"}])
def test_checkpoints_of_1_25_to_1_37_are_read(tmp_path: Path, ids: dict[str, list[str]], more: dict[str, str]) -> None:
    """Devices are recorded by NUMA node, -1 for none; one near two nodes stands under both. `BootID` is new."""
    record(tmp_path, [entry(ids)], **more)
    assert read_recorded(tmp_path) == (Holding("", "", "main", GPU_MEM, frozenset({"a-0", "b-0"}), UID),)
    assert read_listed(tmp_path) == {(GPU_MEM, "a-0"), (GPU_MEM, "a-1"), (GPU_MEM, "b-0")}


@pytest.mark.parametrize("nothing", [None, []])
def test_a_checkpoint_before_the_first_allocation_is_read(tmp_path: Path, nothing: Any) -> None:
    """Go writes a list that was never made as null."""
    record(tmp_path, nothing)
    assert read_held(tmp_path) == frozenset()


@pytest.mark.parametrize("checksum", [0, 1, 2**64 - 1])
def test_a_checksum_decides_nothing(tmp_path: Path, checksum: int) -> None:
    """A kubelet drops a checkpoint with a wrong checksum, but its containers run on: what they have counts as held."""
    record(tmp_path, [entry({"-1": ["a-0"]})], Checksum=checksum)
    assert read_held(tmp_path) == {(GPU_MEM, "a-0")}


def test_a_checkpoint_from_before_1_20_is_an_error(tmp_path: Path) -> None:
    """Devices without NUMA nodes were recorded until 1.19: such a file does not pass for a node without holders."""
    record(tmp_path, [entry(["a-0"])])
    with pytest.raises(CheckpointError, match=CHECKPOINT):
        read_recorded(tmp_path)


# ---------------------------------------------------------------------- pod-resources


def message(number: int, *fields: bytes) -> bytes:
    """Return a field of a message that is a message itself: tag, length and content (protobuf's wire type 2)."""
    content = b"".join(fields)
    assert len(content) < 1 << 14
    length = bytes([len(content)]) if len(content) < 1 << 7 else bytes([len(content) & 127 | 128, len(content) >> 7])
    return bytes([number << 3 | 2]) + length + content


def text(number: int, value: str) -> bytes:
    """Return a field of text."""
    return message(number, value.encode())


def number_(number: int, value: int) -> bytes:
    """Return a field of a small number (wire type 0)."""
    return bytes([number << 3, value])


def devices(number: int, *ids: str) -> Iterable[bytes]:
    """Yield the `ContainerDevices` of a container: an entry for each device, with its NUMA nodes."""
    for id_ in ids:
        topology = message(3, message(1, number_(1, 0)), message(1, number_(1, 1)))
        yield message(number, text(1, GPU_MEM), text(2, id_), topology)


def memory(number: int) -> bytes:
    """Return a `ContainerMemory`."""
    return message(number, text(1, "hugepages-2Mi"), number_(2, 64), message(3, message(1, number_(1, 0))))


CPUS = message(3, bytes([0, 1, 2, 3]))
"""`cpu_ids` of a container, packed."""
CLAIM = (text(2, "claim"), text(3, "team"))
CDI = message(1, text(1, "example.com/gpu=0"))
FROM_1_25 = (CPUS, memory(4))
FROM_1_27 = (*FROM_1_25, message(5, text(1, "class"), *CLAIM, message(4, CDI)))
DEVICE = (text(2, "driver.example.com"), text(3, "pool"), text(4, "device"))
FROM_1_31 = (*FROM_1_25, message(5, *CLAIM, message(4, CDI, *DEVICE)))
FROM_1_35 = (*FROM_1_25, message(5, *CLAIM, message(4, CDI, *DEVICE, text(5, "share"))))
OF_A_POD = (message(4, bytes([0, 1])), memory(5))
"""`cpu_ids` and `memory` of a whole pod, from 1.37 on."""


@pytest.mark.parametrize(
    ("of_a_container", "of_a_pod"),
    [
        pytest.param(FROM_1_25, (), id="1.25-1.26"),
        pytest.param(FROM_1_27, (), id="1.27-1.30"),
        pytest.param(FROM_1_31, (), id="1.31-1.34"),
        pytest.param(FROM_1_35, (), id="1.35-1.36"),
        pytest.param(FROM_1_35, OF_A_POD, id="1.37"),
    ],
)
async def test_lists_of_pods_of_1_25_to_1_37_are_read(
    short_path: Path, of_a_container: tuple[bytes, ...], of_a_pod: tuple[bytes, ...]
) -> None:
    """CPUs, memory, claims and pod-wide resources change nothing in what a container holds of our units."""
    container = message(3, text(1, "main"), *devices(2, "a-0", "b-0"), *of_a_container)
    ended = message(1, text(1, "ended"), text(2, "team"), message(3, text(1, "main")))
    answer = message(1, text(1, "pod"), text(2, "team"), container, *of_a_pod) + ended
    async with answering_bytes(short_path, answer) as socket:
        listing = await list_pods(socket)
    assert listing.holdings == (Holding("team", "pod", "main", GPU_MEM, frozenset({"a-0", "b-0"})),)
    assert listing.pods == {("team", "pod"), ("team", "ended")}


async def test_lists_of_devices_of_1_25_to_1_37_are_read(short_path: Path) -> None:
    """`AllocatableResourcesResponse` has had devices, CPUs and memory all the time."""
    answer = b"".join([*devices(1, "a-0", "b-0"), message(2, bytes([0, 1])), memory(3)])
    async with answering_bytes(short_path, answer, "GetAllocatableResources") as socket:
        assert await healthy_devices(socket) == {GPU_MEM: frozenset({"a-0", "b-0"})}
