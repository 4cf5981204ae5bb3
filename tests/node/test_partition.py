"""Tests of a partitioned node: from the annotation of the Node to what pods get, and what they hold meanwhile."""

from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.node.partitioned import SLICE, PartitionedNode, partitioned
from tests.nodes import a_node

Log = list[MutableMapping[str, Any]]


@pytest.fixture
async def node(kubelet: EmbeddedKubelet, short_path: Path) -> AsyncIterator[PartitionedNode]:
    """Return a node of two GPUs of 40 GB, of which one has a little less than 40 GiB to use."""
    async with partitioned(kubelet, short_path, a_node(40326, 40960)) as made:
        yield made


async def test_a_pod_asks_and_its_slice_appears(node: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """Nothing is offered before it is wanted; then the slice is there, and its container is held to it."""
    await node.start()
    await node.recorded({"partitioning": "mps", "resources": ()})
    assert kubelet.capacity() == {}
    node.want({"10gb": 1})
    await node.offers(_10gb=1)
    started = await node.runs("10gb")
    assert started.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10081M"
    assert started.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert started.environment["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/pipe"
    assert started.device_ids == {SLICE.format("10gb"): {"00000000-10gb-0"}}
