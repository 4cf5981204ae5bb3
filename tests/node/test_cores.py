"""Tests of a node whose containers request memory and compute of a GPU: an embedded kubelet asks in random order."""

import pytest

from gpushare_plugin.config.schema.names import CORES
from gpushare_plugin.testing.kubelet import (
    AdmissionError,
    Container,
    ContainerStartError,
    EmbeddedKubelet,
    Pod,
    StartedContainer,
)
from tests.node.living import living
from tests.nodes import Cards, a_gpu, a_node
from tests.unit.sharing.settings import GPU_MEM, memory

FOUR = a_node(*[40960] * 4)
LIMITED = memory(isolation="hami-core", compute="requested")
OFFERED = {GPU_MEM: 160, CORES: 400}


def pod(name: str, mem: int, cores: int) -> Pod:
    """Return a pod of one container that requests memory and compute; 0 is not requested."""
    limits = {GPU_MEM: mem, CORES: cores}
    return Pod(name, [Container("main", {resource: count for resource, count in limits.items() if count})])


def gpus_of(container: StartedContainer, resource: str) -> set[str]:
    """Return the first digits of the UUIDs of the GPUs that a container has units of."""
    return {id_.partition("-")[0] for id_ in container.device_ids[resource]}


async def test_memory_and_compute_are_always_of_one_gpu(kubelet: EmbeddedKubelet) -> None:
    """Forty pods, of which the kubelet asks for either first, fill four GPUs; no GPU gives more than 100 percent."""
    async with living(kubelet, Cards(FOUR), sharing=LIMITED) as life:
        await life.healthy(OFFERED)
        given: dict[str, int] = {}
        for number in range(40):
            (container,) = (await kubelet.admit(pod(f"pod-{number}", 4, 10))).containers.values()
            (gpu,) = gpus_of(container, GPU_MEM) | gpus_of(container, CORES)
            environment = container.environment
            assert environment["NVIDIA_VISIBLE_DEVICES"].startswith(f"GPU-{gpu}")
            assert environment["CUDA_DEVICE_SM_LIMIT"] == "10"
            assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
            given[gpu] = given.get(gpu, 0) + 10
        assert given == {f"{index:08x}": 100 for index in range(4)}
        with pytest.raises(AdmissionError, match="requested number of devices unavailable"):
            await kubelet.admit(pod("beyond", 0, 1))


async def test_containers_without_compute_are_not_limited(kubelet: EmbeddedKubelet) -> None:
    """Memory alone is allowed: such a container can use all compute, and holds none."""
    async with living(kubelet, Cards(FOUR), sharing=LIMITED) as life:
        await life.healthy(OFFERED)
        (container,) = (await kubelet.admit(pod("memory", 4, 0))).containers.values()
        assert "CUDA_DEVICE_SM_LIMIT" not in container.environment
        assert container.environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"


async def test_a_container_without_compute_does_not_bind_the_next_container(kubelet: EmbeddedKubelet) -> None:
    """The next container has the choice of GPUs, whichever of its resources is asked for first."""
    spread = memory(isolation="hami-core", compute="requested", placement="spread")
    async with living(kubelet, Cards(FOUR), sharing=spread) as life:
        await life.healthy(OFFERED)
        for number in range(12):
            await kubelet.admit(pod(f"memory-{number}", 3, 0))
            # One GPU has compute for all of them: the kubelet asks in any order, and memory first knows of no compute.
            (container,) = (await kubelet.admit(pod(f"both-{number}", 2, 8))).containers.values()
            (_,) = gpus_of(container, GPU_MEM) | gpus_of(container, CORES)


async def test_compute_without_memory_does_not_start(kubelet: EmbeddedKubelet) -> None:
    """The pod shows which resource its container lacks."""
    async with living(kubelet, Cards(FOUR), sharing=LIMITED) as life:
        await life.healthy(OFFERED)
        with pytest.raises(ContainerStartError, match=r"10 requested, but the container has no memory of a GPU"):
            await kubelet.admit(pod("cores", 0, 10))


async def test_init_containers_and_their_successors_are_of_one_gpu(kubelet: EmbeddedKubelet) -> None:
    """Later containers reuse what init containers had, and what they need beyond is of the same GPU."""
    spread = memory(isolation="hami-core", compute="requested", placement="spread")
    async with living(kubelet, Cards(FOUR), sharing=spread) as life:
        await life.healthy(OFFERED)
        for number in range(4):
            first = Container("first", {GPU_MEM: 10, CORES: 20})
            main = Container("main", {GPU_MEM: 20, CORES: 60})
            admitted = await kubelet.admit(Pod(f"pod-{number}", [main], [first]))
            (_,) = {
                gpu
                for container in admitted.containers.values()
                for resource in (GPU_MEM, CORES)
                for gpu in gpus_of(container, resource)
            }
            assert admitted.containers["main"].environment["CUDA_DEVICE_SM_LIMIT"] == "60"


async def test_a_pod_that_a_gpu_has_no_compute_for_fails_in_words(kubelet: EmbeddedKubelet) -> None:
    """Memory fits on one GPU and compute on another: the pod fails whichever is first, and leaves nothing behind."""
    async with living(kubelet, Cards(a_node(8192, 8192)), sharing=LIMITED) as life:
        await life.healthy({GPU_MEM: 16, CORES: 200})
        await kubelet.admit(pod("compute", 1, 95))
        await kubelet.admit(pod("memory", 8, 0))
        with pytest.raises(AdmissionError, match=r"and a container has memory and compute of one GPU"):
            await kubelet.admit(pod("split", 1, 20))
        (container,) = (await kubelet.admit(pod("fits", 1, 5))).containers.values()
        assert container.environment["NVIDIA_VISIBLE_DEVICES"] in {a_gpu(0).uuid, a_gpu(1).uuid}


async def test_a_restart_keeps_what_pods_hold(kubelet: EmbeddedKubelet) -> None:
    """Units of compute are known by their IDs: a new daemon offers exactly what is free."""
    async with living(kubelet, Cards(FOUR), sharing=LIMITED) as life:
        await life.healthy(OFFERED)
        await kubelet.admit(pod("held", 30, 70))
        await life.restart(sharing=LIMITED)
        await life.healthy(OFFERED)
        assert not life.node.snapshot.value.waiting
        (container,) = (await kubelet.admit(pod("next", 20, 40))).containers.values()
        (gpu,) = gpus_of(container, GPU_MEM) | gpus_of(container, CORES)
        assert gpu != "00000000"
