"""Tests of a node whose config places requests by the policy `packing`, beside an embedded kubelet."""

from gpushare_plugin.core.chooser import OneGpu
from gpushare_plugin.node.packing import FIRST_LESSON
from gpushare_plugin.packing.values import LINEAR
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.node.living import Life, living
from tests.nodes import Cards, a_node
from tests.unit.sharing.settings import GPU_MEM, memory
from tests.waiting import until


def pod(name: str, units: int) -> Pod:
    """Return a pod with so many GiB."""
    return Pod(name, [Container("main", {GPU_MEM: units})])


async def gpu_of(kubelet: EmbeddedKubelet, wanted: Pod) -> int:
    """Admit a pod, and return the index of its GPU."""
    (container,) = (await kubelet.admit(wanted)).containers.values()
    return int(container.environment["ALIYUN_COM_GPU_MEM_IDX"])


def has_learned(life: Life) -> bool:
    """Return whether the node goes by what it learned."""
    chooser = life.node.resources[0].chooser
    return isinstance(chooser, OneGpu) and chooser.values != LINEAR


async def test_a_node_keeps_the_pieces_that_its_pods_ask_for(kubelet: EmbeddedKubelet) -> None:
    """After pods with a half of a GPU each, a small pod leaves the half alone, and goes to the emptier GPU.

    After a restart the node learns from what containers hold.
    """
    async with living(kubelet, Cards(a_node(20480, 20480)), sharing=memory(placement="packing")) as life:
        await life.healthy({GPU_MEM: 40})
        for number in range(FIRST_LESSON):
            half = pod(f"half-{number}", 10)
            await kubelet.admit(half)
            kubelet.delete(half)
        await until(lambda: has_learned(life))
        filling, beside = pod("filling", 20), pod("beside", 18)
        assert [await gpu_of(kubelet, each) for each in (filling, pod("small", 2))] == [0, 1]
        kubelet.delete(filling)
        assert [await gpu_of(kubelet, each) for each in (beside, pod("nine", 9))] == [1, 0]
        kubelet.delete(beside)
        # GPU 0 has 11 GiB free, GPU 1 has 18.
        assert await gpu_of(kubelet, pod("another", 2)) == 1
        for number in range(FIRST_LESSON):
            await kubelet.admit(pod(f"tiny-{number}", 1))
        await life.restart(sharing=memory(placement="packing"))
        await until(lambda: has_learned(life))
