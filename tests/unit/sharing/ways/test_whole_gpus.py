"""Tests of `gpushare_plugin.sharing.ways.whole_gpus`."""

import pytest

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.settings import only, planned

NODE = replace(
    a_node(40960, 40960, 40960, 40960),
    closeness={
        frozenset((a_gpu(0).uuid, a_gpu(3).uuid)): 230,
        frozenset((a_gpu(1).uuid, a_gpu(2).uuid)): 50,
    },
)


def test_a_file_without_sharing_advertises_every_gpu_whole() -> None:
    """A file that shares nothing advertises whole GPUs under NVIDIA's name, by UUID."""
    resource = only(planned(NODE))
    assert resource.name == "nvidia.com/gpu"
    assert list(resource.units) == [gpu.uuid for gpu in NODE.cards]


def test_several_gpus_are_close_to_each_other() -> None:
    """Two GPUs are the two that NVLink joins; with those gone, the two behind one PCI switch."""
    resource = only(planned(NODE))
    everything = list(resource.units)
    first = resource.prefer(everything, [], 2)
    assert {resource.gpus[id_].index for id_ in first} == {0, 3}
    rest = [id_ for id_ in everything if id_ not in first]
    assert set(resource.prefer(rest, [], 2)) == set(rest)


def test_the_container_sees_its_gpus_in_index_order() -> None:
    """The kubelet hands IDs over in no order; the container's devices are ordered."""
    resource = only(planned(NODE))
    grant = resource.allocate([a_gpu(2).uuid, a_gpu(0).uuid])
    assert grant.environment == {"NVIDIA_VISIBLE_DEVICES": f"{a_gpu(0).uuid},{a_gpu(2).uuid}"}


def test_more_gpus_than_there_are_is_refused() -> None:
    """The error says how many were asked for and how many are left."""
    resource = only(planned(NODE))
    with pytest.raises(PlacementError, match="5 GPUs requested, 4 free"):
        resource.prefer(list(resource.units), [], 5)
