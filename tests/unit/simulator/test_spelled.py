"""Tests of nodes and pods that people write on a command line."""

from collections.abc import Callable

import pytest

from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.spelled import (
    CountedNodes,
    GpuRequest,
    WrittenNodes,
    change,
    counted,
    request,
    written_nodes,
    written_pods,
)


def test_nodes_have_a_number_a_model_and_a_shape() -> None:
    """The amounts are Kubernetes' quantities; the order of the keys does not matter."""
    shape = NodeKind(cpu=96_500, memory=786_432, gpus=8, model="NVIDIA A100")
    assert written_nodes("20xNVIDIA A100,memory=768Gi,gpus=8,cpu=96500m") == WrittenNodes(
        CountedNodes(20, "NVIDIA A100"), shape
    )
    assert written_nodes("3xT4") == WrittenNodes(CountedNodes(3, "T4"), None)


def test_pods_have_a_number_and_a_request() -> None:
    """A part of a GPU in percent, or a number of GPUs; what is not written is not asked for."""
    share = PodKind(4_000, 16_384, 1, 81, frozenset({"A100", "H100"}))
    assert written_pods("2x81%,cpu=4,memory=16Gi,models=A100|H100") == (share, share)
    assert written_pods("1x4") == (PodKind(0, 0, 4),)
    assert written_pods("1x0,cpu=250m,models=A100") == (PodKind(250, 0, 0),)


def test_a_change_has_two_requests() -> None:
    """What pods ask for, and what they are to ask for."""
    assert change("81%=70%") == (GpuRequest(1, 81), GpuRequest(1, 70))
    assert change("100%=2") == (GpuRequest(1), GpuRequest(2))
    assert [str(each) for each in (GpuRequest(1, 81), GpuRequest(0), GpuRequest(1), GpuRequest(4))] == [
        "81 % of a GPU",
        "no GPU",
        "one GPU",
        "4 GPUs",
    ]


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (counted, "T4", "found 'T4', expected NUMBERxMODEL"),
        (counted, "0xT4", "expected NUMBERxMODEL"),
        (counted, "9999999xT4", "a number from 1 to 1,000,000"),
        (written_nodes, "2xT4,gpus=2", "expected NUMBERxMODEL,gpus=GPUS,cpu=CPUS,memory=MEMORY, such as 20xA100"),
        (written_nodes, "2xT4,gpus=65,cpu=1,memory=1Gi", "found gpus=65 in"),
        (written_nodes, "2xT4,gpus=2,cpu=1,cpu=2", "found 'cpu=2' in"),
        (written_nodes, "2xT4,gpus=2,cpu=many,memory=1Gi", "cpu: quantity 'many' found, a quantity such as 2"),
        (written_nodes, "2xT4,gpus=2,cpu=1,memory=9E", "found memory=9E, expected less"),
        (written_pods, "81%", "found '81%', expected NUMBERxPERCENT% or NUMBERxGPUS"),
        (written_pods, "2x81%,gpu=1", "found 'gpu=1' in '2x81%,gpu=1', expected each of cpu, memory, models once"),
        (request, "101%", "expected PERCENT% of one GPU, or a number of GPUs"),
        (request, "65", "expected PERCENT% of one GPU, or a number of GPUs"),
        (change, "81%", "found '81%', expected REQUEST=REQUEST, such as 81%=70%"),
    ],
)
def test_what_cannot_be_read_is_told_with_an_example(read: Callable[[str], object], text: str, said: str) -> None:
    """The message has what was found, and what was expected."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the message is compared below
        read(text)
    assert said in str(refused.value)
