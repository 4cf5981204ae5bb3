"""Tests of `gpushare_plugin.core.pairing`, with resources that a config makes."""

import re
from dataclasses import dataclass, field

import pytest

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.config.schema.names import CORES
from gpushare_plugin.core.pairing import Pairing
from gpushare_plugin.core.resource import Resource
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.settings import GPU_MEM, memory, planned, units_by_gpu

ON = r"this container has its {} on GPU {} .*, and a container has memory and compute of one GPU"


@dataclass
class Asked:
    """A node of two GPUs of 8 GiB, asked as the kubelet asks; `free` are the units that nobody holds."""

    checkpoint: int = 0
    free: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Offer memory and compute."""
        decided = planned(a_node(8192, 8192), sharing=memory(isolation="mps", compute="requested"))
        self.resources: dict[str, Resource] = {each.name: each for each in decided.resources}
        self.pairing = Pairing(lambda: self.checkpoint)
        self.free = {name: set(resource.units) for name, resource in self.resources.items()}

    def __call__(self, name: str, size: int) -> int:
        """Return the index of the GPU that a container gets `size` units of."""
        resource = self.resources[name]
        partner = self.pairing.partner(resource.role)
        ids = resource.prefer(list(self.free[name]), [], size, partner=partner)
        resource.allocate(ids, partner=partner)
        if allocated := resource.allocated(ids):
            self.pairing.allocated(allocated)
        self.free[name] -= set(ids)
        ((index, count),) = units_by_gpu(resource, ids).items()
        assert count == size
        return index

    def taken(self, name: str, index: int, count: int) -> None:
        """Have somebody hold `count` units of a GPU."""
        prefix = a_gpu(index).uuid
        ids = [id_ for id_ in self.free[name] if self.resources[name].units[id_].gpu == prefix]
        self.free[name] -= set(ids[:count])


@pytest.mark.parametrize("order", [(GPU_MEM, CORES), (CORES, GPU_MEM)])
def test_the_second_resource_of_a_container_is_on_the_gpu_of_the_first(order: tuple[str, str]) -> None:
    """Whichever the kubelet asks for first, and where the policy would choose another GPU."""
    asked = Asked()
    asked.taken(order[0], 0, 1)
    asked.taken(order[1], 1, 1)
    sizes = {GPU_MEM: 3, CORES: 40}
    assert [asked(name, sizes[name]) for name in order] == [0, 0]


def test_a_container_that_follows_a_complete_pair_chooses_freely() -> None:
    """A container that has memory and compute is complete: what follows is another one's."""
    asked = Asked()
    assert [asked(GPU_MEM, 8), asked(CORES, 30)] == [0, 0]
    assert [asked(GPU_MEM, 8), asked(CORES, 30)] == [1, 1]


def test_a_checkpoint_ends_the_pairing_of_a_container() -> None:
    """A container that requested memory only is not mistaken for the next one, of which compute is asked for first."""
    asked = Asked()
    asked.taken(CORES, 0, 90)
    assert asked(GPU_MEM, 2) == 0
    asked.checkpoint += 1
    assert [asked(CORES, 40), asked(GPU_MEM, 2)] == [1, 1]


@pytest.mark.parametrize(
    ("first", "second", "full"), [(GPU_MEM, CORES, 90), (CORES, GPU_MEM, 7)], ids=["no compute", "no memory"]
)
def test_a_gpu_without_room_for_the_second_is_refused_in_words(first: str, second: str, full: int) -> None:
    """The message has the units that are missing, and where the container has the other ones."""
    asked = Asked()
    asked.taken(second, 0, full)
    assert asked(first, 2) == 0
    with pytest.raises(PlacementError, match=ON.format(re.escape(first), 0)) as refusal:
        asked(second, full)
    left = asked.resources[second].units_of[a_gpu(0).uuid] - full
    assert f"{second}: {full} units requested, but GPU 0 ({a_gpu(0).uuid}) has {left} free" in str(refusal.value)


def test_compute_on_another_gpu_than_the_memory_is_refused() -> None:
    """The kubelet need not follow the preference: compute of another GPU than that of the memory is not granted."""
    asked = Asked()
    asked(GPU_MEM, 2)
    cores = asked.resources[CORES]
    other = [unit.id for unit in cores.units.values() if unit.gpu == a_gpu(1).uuid][:5]
    with pytest.raises(PlacementError, match=rf"units found on GPU 1 .*{ON.format(re.escape(GPU_MEM), 0)}"):
        cores.allocate(other, partner=asked.pairing.partner("cores"))


def test_a_failed_allocation_is_not_followed() -> None:
    """The container of a pod that was not admitted is gone; another one goes where there is room."""
    asked = Asked()
    asked.taken(GPU_MEM, 0, 7)
    assert asked(CORES, 50) == 0
    asked.pairing.failed()
    assert [asked(GPU_MEM, 2), asked(CORES, 50)] == [1, 1]


def test_memory_alone_is_allowed_and_compute_alone_does_not_start() -> None:
    """A container that has compute and no memory has no GPU: it is refused when it starts, in words."""
    asked = Asked()
    asked(GPU_MEM, 2)
    asked.checkpoint += 1
    asked(GPU_MEM, 2)
    asked(CORES, 10)
    asked.checkpoint += 1
    both = asked.resources[CORES].units.keys() - asked.free[CORES]
    asked.pairing.check_start(CORES, both)
    asked(CORES, 20)
    alone = asked.resources[CORES].units.keys() - asked.free[CORES] - both
    with pytest.raises(PlacementError, match=f"{re.escape(CORES)}: 20 requested, but the container has no memory"):
        asked.pairing.check_start(CORES, alone)
    asked(GPU_MEM, 2)
    asked.pairing.check_start(CORES, alone)
    asked.pairing.check_start(CORES, [])


def test_resources_that_are_no_pair_follow_nothing() -> None:
    """Memory whose containers do not request compute goes where the policy has it."""
    asked = Asked()
    asked(CORES, 10)
    plain = planned(a_node(8192, 8192), sharing=memory()).resources[0]
    assert asked.pairing.partner(plain.role) is None
    assert plain.allocated(list(plain.units)[:1]) is None
