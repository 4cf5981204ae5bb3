"""Tests of `gpushare_plugin.node.node` on cards in MIG mode."""

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import FailedGpu, Inventory
from gpushare_plugin.core.health import Cordon, GpuEvent
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.node.living import living
from tests.nodes import Cards, a_gpu, a_mig_node
from tests.process.daemon import admit

SMALL, LARGE, GPU = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb", "nvidia.com/gpu"
MIXED = {"migStrategy": "mixed"}
NODE = a_mig_node(("1g.5gb", "1g.5gb", "3g.20gb"), ("1g.5gb",), None)


def end(kubelet: EmbeddedKubelet, name: str) -> None:
    """Let the pod of this name end."""
    (pod,) = [pod for pod in kubelet.pods.values() if pod.name == name]
    kubelet.delete(pod)


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (GpuEvent(a_gpu(0).uuid, 56, "", 8, 0), {SMALL: 2, LARGE: 1, GPU: 1}),
        (GpuEvent(a_gpu(0).uuid, 56, "", 9), {SMALL: 3, GPU: 1}),
        (GpuEvent(a_gpu(0).uuid, 79, ""), {SMALL: 1, GPU: 1}),
        (GpuEvent(a_gpu(2).uuid, 79, ""), {SMALL: 3, LARGE: 1}),
        (GpuEvent(None, None, ""), {}),
    ],
)
async def test_a_fault_reaches_the_gpus_that_an_event_concerns(
    kubelet: EmbeddedKubelet, event: GpuEvent, left: dict[str, int]
) -> None:
    """The instances an event names; all of the card when it names none; everything when it names no card."""
    async with living(kubelet, Cards(NODE), flags=MIXED, health={"rescanSeconds": 600, "probeSeconds": 600}) as life:
        await life.healthy({SMALL: 3, LARGE: 1, GPU: 1})
        life.node.event(event)
        await life.healthy(left)


async def test_a_fault_of_an_instance_is_one_of_the_card_as_a_whole(kubelet: EmbeddedKubelet) -> None:
    """Under `none` the card is allocated with all its instances."""
    async with living(kubelet, Cards(NODE), health={"rescanSeconds": 600, "probeSeconds": 600}) as life:
        await life.healthy({GPU: 3})
        life.node.event(GpuEvent(a_gpu(0).uuid, 56, "", 8, 0))
        await life.healthy({GPU: 2})


async def test_an_instance_recovers_by_itself(kubelet: EmbeddedKubelet) -> None:
    """Good looks at the instance end its fault."""
    async with living(kubelet, Cards(NODE), flags=MIXED) as life:
        life.node.event(GpuEvent(a_gpu(0).uuid, 56, "", 8, 0))
        await life.healthy({SMALL: 3, LARGE: 1, GPU: 1})


@pytest.mark.parametrize(
    ("failed", "left"),
    [
        (FailedGpu(0, "Unknown Error", NODE.instances[1].uuid, number=1), {SMALL: 2, LARGE: 1, GPU: 1}),
        (FailedGpu(0, "Unknown Error", number=1), {SMALL: 2, LARGE: 1, GPU: 1}),
        (FailedGpu(0, "its MIG instances cannot be listed"), {SMALL: 1, GPU: 1}),
        (FailedGpu(0, "GPU is lost", a_gpu(0).uuid, lost=True), {SMALL: 1, GPU: 1}),
    ],
)
async def test_instances_that_do_not_answer_are_unhealthy(
    kubelet: EmbeddedKubelet, failed: FailedGpu, left: dict[str, int]
) -> None:
    """One that fails by itself, or all of a card that does not list them or is lost; all come back."""
    cards = Cards(NODE)
    async with living(kubelet, cards, flags=MIXED) as life:
        await life.healthy({SMALL: 3, LARGE: 1, GPU: 1})
        gone = {1} if failed.number == 1 else {0, 1, 2}
        cards.inventory = replace(
            NODE,
            cards=tuple(gpu for gpu in NODE.cards if gpu.uuid != failed.uuid),
            instances=tuple(gpu for gpu in NODE.instances if gpu.index or (gpu.mig and gpu.mig.number not in gone)),
            failed=(failed,),
        )
        await life.healthy(left)
        cards.inventory = NODE
        await life.healthy({SMALL: 3, LARGE: 1, GPU: 1})


async def test_the_reason_of_an_unhealthy_instance_is_named(kubelet: EmbeddedKubelet) -> None:
    """An instance names the fault of its card, a card that of its instance, and each its own first."""
    async with living(kubelet, Cards(NODE), flags=MIXED, health={"rescanSeconds": 600, "probeSeconds": 600}) as life:
        await life.healthy({SMALL: 3, LARGE: 1, GPU: 1})
        life.node.event(GpuEvent(a_gpu(0).uuid, 56, "XID 56", 8, 0))
        life.node.cordon(Cordon({a_gpu(1).uuid: "cordoned by annotation"}))
        first, second = NODE.instances[0], NODE.instances[1]
        (hurt,) = (gpu for gpu in (first, second) if gpu.uuid in life.node.snapshot.value.unhealthy)
        assert life.node.snapshot.value.unhealthy == {
            hurt.uuid: "XID 56",
            a_gpu(0).uuid: f"affected by {hurt.identity}: XID 56",
        }
        assert life.node.snapshot.value.cordoned == {
            a_gpu(1).uuid: "cordoned by annotation",
            NODE.instances[3].uuid: f"affected by {a_gpu(1).identity}: cordoned by annotation",
        }


async def test_another_layout_is_taken_over(kubelet: EmbeddedKubelet) -> None:
    """Instances that came are offered, those that went are not, and a card whose MIG mode is off is whole."""
    cards = Cards(NODE)
    async with living(kubelet, cards, flags=MIXED) as life:
        await life.healthy({SMALL: 3, LARGE: 1, GPU: 1})
        other = a_mig_node((), None, ("3g.20gb",))
        renamed = tuple(replace(gpu, uuid=gpu.uuid.replace("4000", "4001")) for gpu in other.instances)
        cards.inventory = replace(other, instances=renamed)
        await life.healthy({LARGE: 1, GPU: 1})


async def test_a_card_is_not_handed_out_twice_over_its_instances(kubelet: EmbeddedKubelet) -> None:
    """Instances wait for the pod that has the whole card, and the card for pods that have its instances."""
    node = Inventory(NODE.cards[:1], instances=NODE.instances[:3])
    async with living(kubelet, Cards(node)) as life:
        await life.healthy({GPU: 1})
        await admit(kubelet, GPU, 1, "whole")
        await life.reload(flags=MIXED)
        await life.healthy({})
        end(kubelet, "whole")
        await life.healthy({SMALL: 2, LARGE: 1})
        await admit(kubelet, LARGE, 1, "part")
        await life.reload()
        await life.healthy({})
        end(kubelet, "part")
        await life.healthy({GPU: 1})


async def test_a_card_that_is_held_whole_gives_no_instance(kubelet: EmbeddedKubelet) -> None:
    """From `none` to `mixed` while a pod has a card: its instances wait for the pod, those of other cards do not."""
    async with living(kubelet, Cards(a_mig_node(("1g.5gb",), ("1g.5gb",)))) as life:
        await life.healthy({GPU: 2})
        await admit(kubelet, GPU, 1, "whole")
        await life.reload(flags=MIXED)
        await life.healthy({SMALL: 1})
        end(kubelet, "whole")
        await life.healthy({SMALL: 2})
