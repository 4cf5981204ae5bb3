"""Tests of `gpushare_plugin.gpus.nvml.library`: two threads that share NVML."""

import threading
from pathlib import Path

import pynvml

from gpushare_plugin.gpus.nvml.library import KnownCards, NvmlLibrary
from gpushare_plugin.testing.nvml import FakeGpu
from tests.unit.gpus.conftest import Node


def test_nvml_is_not_initialised_anew_while_it_is_lent(describe: Node, tmp_path: Path) -> None:
    """A wait for events that never ends keeps NVML as it is, and the cards it knows go on being asked."""
    node = describe([FakeGpu()])
    library = NvmlLibrary(tmp_path, tmp_path, node.procfs, patience=0.05)
    assert library.open()
    library.publish(["GPU-1"])
    node.add_gpu(FakeGpu())
    with library.lent(0) as cards:
        assert cards == KnownCards(1, frozenset({"GPU-1"}))
        assert not library.open()
        library.close()
        assert pynvml.nvmlDeviceGetCount() == 1
    assert library.open()
    assert pynvml.nvmlDeviceGetCount() == 2


def test_nvml_is_initialised_as_soon_as_it_is_given_back(describe: Node, tmp_path: Path) -> None:
    """Beginning anew waits for the other thread, and has to wait no longer; then cards are lent only once looked at."""
    node = describe([FakeGpu()])
    library = NvmlLibrary(tmp_path, tmp_path, node.procfs)
    library.open()
    library.publish(["GPU-1"])
    node.add_gpu(FakeGpu())
    opener = threading.Thread(target=library.open)
    with library.lent(0) as cards:
        assert cards
        opener.start()
    opener.join()
    with library.lent(0) as cards:
        assert cards is None
    library.publish(["GPU-1", "GPU-2"])
    with library.lent(0) as cards:
        assert cards == KnownCards(2, frozenset({"GPU-1", "GPU-2"}))


def test_a_node_without_cards_lends_none(describe: Node, tmp_path: Path) -> None:
    """There is nothing to wait for on a node without cards, or before the first look."""
    describe([])
    library = NvmlLibrary(tmp_path, tmp_path, tmp_path)
    for prepare in (lambda: None, library.open, lambda: library.publish([])):
        prepare()
        with library.lent(0) as cards:
            assert cards is None
