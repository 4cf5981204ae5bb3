"""Tests of `gpushare_plugin.gpus.nvml.initialisation`: what is begun ahead is taken over once."""

from pathlib import Path

import pytest

from gpushare_plugin.base.errors import DriverChangedError, NoGpuLibraryError
from gpushare_plugin.gpus.nvml import initialisation
from gpushare_plugin.gpus.nvml.library import NvmlLibrary
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu
from tests.unit.gpus.conftest import Node

INITIALISE = "nvmlInitWithFlags"


def test_an_initialisation_that_was_begun_is_not_repeated(describe: Node, tmp_path: Path) -> None:
    """The first use of NVML waits for the attempt that was begun; NVML is initialised once."""
    node = describe([FakeGpu()], init_delay_ms=50)
    initialisation.begin(tmp_path)
    library = NvmlLibrary(tmp_path, initialisation.SYSFS, initialisation.PROCFS)
    assert library.open()
    assert not library.open()
    assert node.calls()[INITIALISE] == 1


def test_a_card_that_came_meanwhile_is_seen(describe: Node, tmp_path: Path) -> None:
    """What the kernel knew before the attempt was begun is what NVML may know, so the next look restarts it."""
    node = describe([FakeGpu()])
    initialisation.begin(tmp_path)
    library = NvmlLibrary(tmp_path, tmp_path, node.procfs)
    assert library.open()
    assert library.open()
    assert not library.open()


def test_a_failed_initialisation_is_told_once(describe: Node, tmp_path: Path) -> None:
    """The first to wait gets the error of the attempt that was begun; after that, each look makes one of its own."""
    node = describe([FakeGpu()], failures={INITIALISE: ErrorCode.DRIVER_NOT_LOADED})
    initialisation.begin(tmp_path)
    library = NvmlLibrary(tmp_path, tmp_path, node.procfs)
    with pytest.raises(NoGpuLibraryError, match="Driver Not Loaded"):
        library.open()
    node.recover(None, INITIALISE)
    assert library.open()


def test_the_library_of_another_root_is_refused(describe: Node, tmp_path: Path) -> None:
    """A process keeps the library it loaded first: if the config names another, only a new process can load that."""
    node = describe([FakeGpu()])
    initialisation.begin(tmp_path / "early")
    library = NvmlLibrary(tmp_path / "late", tmp_path, node.procfs)
    with pytest.raises(DriverChangedError, match=r"late \(did it change just now\?\)"):
        library.open()
