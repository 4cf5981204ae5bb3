"""Which nodes decide the verdict on a pod."""

import pytest

from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.observe.cluster.deciding import deciding
from tests.unit.ledger.objects import memory, uuid
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded

WANTED = memory(15, annotations={"nvidia.com/use-gpuuuid": uuid(0, "d")})


@pytest.mark.parametrize(("asked", "names"), [(memory(15), "acdefgi"), (WANTED, "abcdefghi")], ids=["any", "wanted"])
def test_of_nodes_that_are_alike_those_with_most_free_decide(asked: PodRequest, names: str) -> None:
    """On one GPU, or in sum; nodes with other GPUs, and with GPUs that cannot be used, decide, too."""
    made = Cluster()
    free = {"a": (7, 1), "b": (7, 0), "c": (8, 0), "d": (6, 6), "g": (9, 9)}
    for name, units in free.items():
        made.node(name, recorded(gpu(name, 0), gpu(name, 1)))
        for index, left in enumerate(units):
            made.pod(f"{name}-{index}", 15 - left, name, on=index)
    made.node("e", recorded(gpu("e", 0, 7), gpu("e", 1, 7)))
    for name in "fi":
        made.node(name, recorded(*[gpu(name, index, healthy=False, reason="XID 79") for index in range(2)]))
    made.plain("h", 1, 0)
    assert "".join(deciding(made.account, asked, sorted(made.account.nodes))) == names
