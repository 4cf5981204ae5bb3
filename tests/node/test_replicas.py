"""Tests of a node with replicas: from which GPUs containers get theirs, asked by an embedded kubelet."""

from collections import Counter

import pytest

from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.node.living import Life, living
from tests.nodes import Cards, a_gpu, a_node
from tests.unit.sharing.settings import time_slicing

GPU = "nvidia.com/gpu"
THREE = a_node(40960, 40960, 40960)
INDICES = {a_gpu(index).uuid: index for index in range(3)}


async def admitted(life: Life, name: str, size: int) -> tuple[Pod, dict[int, int]]:
    """Admit a pod of one container with so many replicas, and return how many it has of which GPU, by index."""
    pod = Pod(name, [Container("main", {GPU: size})])
    ids = (await life.kubelet.admit(pod)).containers["main"].device_ids[GPU]
    return pod, dict(Counter(INDICES[id_.partition("::")[0]] for id_ in sorted(ids)))


@pytest.mark.parametrize(
    ("policy", "gpus_of_two", "gpus_of_three"),
    [
        ("distributed", {1: 2}, {0: 1, 1: 1, 2: 1}),
        ("packed", {0: 2}, {0: 2, 1: 1}),
        ("spread", {0: 1, 1: 1}, {0: 1, 1: 1, 2: 1}),
    ],
)
async def test_several_replicas_come_from_the_gpus_of_the_policy(
    kubelet: EmbeddedKubelet, policy: str, gpus_of_two: dict[int, int], gpus_of_three: dict[int, int]
) -> None:
    """By the rules of NVIDIA's plugin, one replica after the other, also for a container that requests several."""
    flags = {"plugin": {"sharedDevicesAllocationPolicy": policy}}
    sharing = time_slicing({"name": GPU, "replicas": 8})
    async with living(kubelet, Cards(THREE), sharing=sharing, flags=flags) as life:
        await life.healthy({GPU: 24})
        single = [await admitted(life, f"single-{number}", 1) for number in range(6)]
        assert [gpus for _, gpus in single] == [{0 if policy == "packed" else number % 3: 1} for number in range(6)]
        # Without these, GPU 1 is the least used one; packed, all others are on GPU 0.
        kubelet.delete(single[1][0])
        kubelet.delete(single[4][0])
        assert (await admitted(life, "two", 2))[1] == gpus_of_two
        assert (await admitted(life, "three", 3))[1] == gpus_of_three
