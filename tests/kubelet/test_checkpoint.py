"""Tests of `gpushare_plugin.kubelet.checkpoint`, on what an embedded kubelet writes."""

from pathlib import Path

import pytest

from gpushare_plugin.kubelet.checkpoint import CHECKPOINT, CheckpointError, read_held
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.kubelet.serving import running, shared_memory

GPU_MEM = "aliyun.com/gpu-mem"


async def test_what_pods_hold_is_there_without_asking_the_kubelet(kubelet: EmbeddedKubelet) -> None:
    """The units of a running pod are read from disk, also when the kubelet is away."""
    assert read_held(kubelet.plugin_directory) == frozenset()
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        admitted = await kubelet.admit(Pod("pod", [Container("main", {GPU_MEM: 3})]))
        await kubelet.stop()
        ids = admitted.containers["main"].device_ids[GPU_MEM]
        assert read_held(kubelet.plugin_directory) == {(GPU_MEM, id_) for id_ in ids}


def test_a_directory_without_kubelet_holds_nothing(tmp_path: Path) -> None:
    """Neither an empty directory nor a missing one is an error."""
    assert read_held(tmp_path) == read_held(tmp_path / "missing") == frozenset()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"Data": null}', '{"Data": {"PodDeviceEntries": [7]}}', "\0"])
def test_a_checkpoint_that_is_none_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    """A format nobody knows must not pass for a node where nobody holds anything."""
    (tmp_path / CHECKPOINT).write_text(content)
    with pytest.raises(CheckpointError, match=CHECKPOINT):
        read_held(tmp_path)


def test_entries_that_hold_nothing_are_nothing(tmp_path: Path) -> None:
    """The kubelet writes null for what is empty."""
    (tmp_path / CHECKPOINT).write_text(
        '{"Data": {"PodDeviceEntries": [{"ResourceName": "a/b", "DeviceIDs": null}, '
        '{"ResourceName": "a/b", "DeviceIDs": {"0": null, "1": ["x"]}}], "RegisteredDevices": {}}, "Checksum": 1}'
    )
    assert read_held(tmp_path) == {("a/b", "x")}
    (tmp_path / CHECKPOINT).write_text('{"Data": {"PodDeviceEntries": null}}')
    assert read_held(tmp_path) == frozenset()
