"""What the kubelet can send at its worst: its checkpoint, with a value of another type at every place."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.kubelet.allocations.checkpoint import (
    CHECKPOINT,
    CheckpointError,
    read_listed,
    read_recorded,
)
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml
from tests.process.daemon import running

GPU_MEM = "aliyun.com/gpu-mem"
SOUND = {
    "Data": {
        "PodDeviceEntries": [
            {"PodUID": "a", "ContainerName": "main", "ResourceName": GPU_MEM, "DeviceIDs": {"-1": ["5f4c2a1b-1Gi-0"]}}
        ],
        "RegisteredDevices": {GPU_MEM: ["5f4c2a1b-1Gi-0"]},
    },
    "Checksum": 1,
}
VALUES: tuple[object, ...] = (
    None,
    True,
    7,
    -1,
    1.5,
    10**30,
    "",
    "x",
    "\ud800",
    [],
    [7],
    [[]],
    [None],
    {},
    {"x": 7},
    {"x": [7]},
    {"x": {}},
)


def _places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value in a document."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from _places(part, (*path, name))


def _with(value: object, path: tuple[str | int, ...]) -> object:
    """Return a sound checkpoint with another value at one place."""
    document: Any = {"": deepcopy(SOUND)}
    holder = document
    *before, last = ("", *path)
    for name in before:
        holder = holder[name]
    holder[last] = value
    return document[""]


@pytest.mark.parametrize("path", list(_places(SOUND)), ids=str)
def test_a_value_of_any_type_anywhere_is_text_or_the_readers_own_error(
    tmp_path: Path, path: tuple[str | int, ...]
) -> None:
    """What a checkpoint says of IDs, resources and pods is text, or the reader raises its own error."""
    for value in VALUES:
        (tmp_path / CHECKPOINT).write_text(json.dumps(_with(value, path)))
        for read in (read_listed, read_recorded):
            try:
                found = read(tmp_path)
            except CheckpointError:
                continue
            texts = [
                text for each in found for part in each for text in (part if isinstance(part, frozenset) else [part])
            ]
            assert all(isinstance(text, str) for text in texts), value


async def test_the_daemon_outlives_a_checkpoint_whose_ids_are_no_text(kubelet: EmbeddedKubelet) -> None:
    """It says which file is bad, offers nothing while it knows nothing, and everything once the file is sound."""
    checkpoint = kubelet.plugin_directory / CHECKPOINT
    checkpoint.write_text(json.dumps(_with([7], ("Data", "PodDeviceEntries", 0, "DeviceIDs", "-1"))))
    with FakeNvml([FakeGpu(memory_mib=8192)]) as nvml:
        async with running(kubelet, environment=nvml.environment) as daemon:
            told = await daemon.logged("allocations_unknown")
            assert f"{checkpoint} does not show what pods hold" in told["reason"]
            assert "DeviceIDs" in told["reason"]
            checkpoint.unlink()
            await daemon.advertises(kubelet, {GPU_MEM: 8})
