"""Tests of `gpushare_plugin.kubelet.allocations.checkpoint`, on what an embedded kubelet writes."""

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_plugin.core.holding import Holding
from gpushare_plugin.kubelet.allocations.checkpoint import (
    CHECKPOINT,
    CheckpointError,
    read_granted,
    read_listed,
    read_recorded,
)
from gpushare_plugin.kubelet.allocations.pod_resources import list_pods
from gpushare_plugin.kubelet.api.deviceplugin_pb2 import ContainerAllocateResponse
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.unit.kubelet.serving import read_held, running, shared_memory

GPU_MEM = "aliyun.com/gpu-mem"


async def test_units_that_pods_hold_are_read_without_asking_the_kubelet(kubelet: EmbeddedKubelet) -> None:
    """The units of a running pod are read from disk, also when the kubelet is away."""
    assert read_held(kubelet.plugin_directory) == frozenset()
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        admitted = await kubelet.admit(Pod("pod", [Container("main", {GPU_MEM: 3})]))
        await kubelet.stop()
        ids = admitted.containers["main"].device_ids[GPU_MEM]
        assert read_held(kubelet.plugin_directory) == {(GPU_MEM, id_) for id_ in ids}


async def test_units_that_were_listed_last_are_read_from_disk(kubelet: EmbeddedKubelet) -> None:
    """All that could be allocated, whoever holds it; nothing where no kubelet wrote yet."""
    assert read_listed(kubelet.plugin_directory) == frozenset()
    async with running(kubelet.plugin_directory, shared_memory(8)) as (session,):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        await kubelet.admit(Pod("pod", [Container("main", {GPU_MEM: 3})]))
        expected = {(GPU_MEM, id_) for id_ in session.resource.units}
    assert read_listed(kubelet.plugin_directory) == expected


async def test_what_containers_were_given_is_read_from_disk(kubelet: EmbeddedKubelet) -> None:
    """The variables of each container of a pod are on disk, init containers included; others than wanted are not."""
    assert read_granted(kubelet.plugin_directory, lambda _: True) == {}
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        pod = Pod("pod", [Container("main", {GPU_MEM: 3})], [Container("init", {GPU_MEM: 2})])
        started = (await kubelet.admit(pod)).containers["main"].environment
        await kubelet.stop()
    granted = read_granted(kubelet.plugin_directory, lambda name: name == "GPUSHARE_MEMORY_LIMIT_MIB")
    assert granted[pod.uid] == {
        "init": {"GPUSHARE_MEMORY_LIMIT_MIB": "2048"},
        "main": {"GPUSHARE_MEMORY_LIMIT_MIB": started["GPUSHARE_MEMORY_LIMIT_MIB"]},
    }
    assert started["GPUSHARE_MEMORY_LIMIT_MIB"] == "3072"


@pytest.mark.parametrize("answer", ["", "no base64", "/////w==", 7, None])
def test_an_answer_that_cannot_be_read_is_left_out(tmp_path: Path, answer: object) -> None:
    """What one container was given does not depend on the answer to another one; a broken file is an error."""
    good = base64.b64encode(ContainerAllocateResponse(envs={"A": "1"}).SerializeToString()).decode()
    entries = [
        {"PodUID": uid, "ContainerName": "main", "ResourceName": GPU_MEM, "AllocResp": each}
        for uid, each in (("bad", answer), ("good", good))
    ]
    (tmp_path / CHECKPOINT).write_text(json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 0}))
    assert read_granted(tmp_path, lambda _: True) == {"good": {"main": {"A": "1"}}}


def test_a_directory_without_kubelet_holds_nothing(tmp_path: Path) -> None:
    """An empty directory is a node where nothing was handed out; one that is missing tells nothing."""
    assert read_held(tmp_path) == frozenset()
    with pytest.raises(CheckpointError, match="does not exist"):
        read_held(tmp_path / "missing")


async def test_a_checkpoint_has_init_containers_and_ended_pods_until_the_next_list(
    kubelet: EmbeddedKubelet,
) -> None:
    """Units that pod-resources does not show are on disk; the kubelet drops ended pods when it is sent a list."""
    async with running(kubelet.plugin_directory, shared_memory(8)) as (session,):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        pod = Pod("pod", [Container("main")], [Container("init", {GPU_MEM: 3})])
        await kubelet.admit(pod)
        shown = await list_pods(kubelet.pod_resources_socket)
        assert [holding.ids for holding in shown.holdings if holding.resource == GPU_MEM] == []
        ids = frozenset(id_ for _, id_ in read_held(kubelet.plugin_directory))
        assert len(ids) == 3
        assert read_recorded(kubelet.plugin_directory) == (Holding("", "", "init", GPU_MEM, ids, pod.uid),)
        kubelet.delete(pod)
        assert len(read_held(kubelet.plugin_directory)) == 3
        await list_pods(kubelet.pod_resources_socket)
        session.resend()
        await kubelet.wait_for(lambda _: not read_held(kubelet.plugin_directory))


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"Data": null}', '{"Data": {"PodDeviceEntries": [7]}}', "\0", DEEP]
)
def test_a_broken_checkpoint_is_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    """A format nobody knows must not pass for a node where nobody holds anything."""
    (tmp_path / CHECKPOINT).write_text(content)
    with pytest.raises(CheckpointError, match=CHECKPOINT):
        read_held(tmp_path)


def _endless(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(1 << 40)


def _link(file: Path) -> None:
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, _endless, _link, Path.mkdir])
def test_a_pipe_or_an_endless_file_as_checkpoint_is_an_error_at_once(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A pipe, a file or a device without end, a directory: an error that names it, at once."""
    make(tmp_path / CHECKPOINT)
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
