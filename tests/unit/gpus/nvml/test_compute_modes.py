"""Tests of `gpushare_plugin.gpus.nvml.compute_modes`."""

from pathlib import Path

import pytest

from gpushare_plugin.gpus.compute_modes import ComputeMode, ComputeModeError
from gpushare_plugin.gpus.nvml.compute_modes import NvmlComputeModes
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu
from tests.unit.gpus.conftest import Node

UUIDS = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-00000001-0000-4000-8000-000000000001")
SET = "nvmlDeviceSetComputeMode"


@pytest.fixture
def modes(tmp_path: Path) -> NvmlComputeModes:
    """Return the modes of the node that this process sees."""
    return NvmlComputeModes(tmp_path, tmp_path, tmp_path)


def two_gpus() -> list[FakeGpu]:
    """Return two cards."""
    return [FakeGpu(uuid=uuid) for uuid in UUIDS]


def test_setting_the_mode_of_a_card_leaves_other_cards(describe: Node, modes: NvmlComputeModes) -> None:
    """One card's mode changes, the other's does not."""
    describe(two_gpus())
    assert modes.read(UUIDS[0]) is ComputeMode.DEFAULT
    modes.set(UUIDS[0], ComputeMode.EXCLUSIVE_PROCESS)
    assert modes.read(UUIDS[0]) is ComputeMode.EXCLUSIVE_PROCESS
    assert modes.read(UUIDS[1]) is ComputeMode.DEFAULT
    modes.set(UUIDS[0], ComputeMode.DEFAULT)
    assert modes.read(UUIDS[0]) is ComputeMode.DEFAULT


def test_a_missing_right_to_set_the_mode_is_told_with_a_remedy(describe: Node, modes: NvmlComputeModes) -> None:
    """The reason is NVML's, the remedy ours."""
    node = describe(two_gpus())
    node.fail(0, SET, ErrorCode.NO_PERMISSION)
    with pytest.raises(ComputeModeError, match="Run gpushare mps as root"):
        modes.set(UUIDS[0], ComputeMode.EXCLUSIVE_PROCESS)
    modes.set(UUIDS[1], ComputeMode.EXCLUSIVE_PROCESS)


@pytest.mark.parametrize("code", [ErrorCode.NOT_SUPPORTED, ErrorCode.FUNCTION_NOT_FOUND])
def test_a_card_without_compute_modes_cannot_be_shared_by_mps(
    describe: Node, modes: NvmlComputeModes, code: ErrorCode
) -> None:
    """Programs outside of MPS could use the GPU beside the MPS server, so the words say to share it otherwise."""
    node = describe(two_gpus())
    node.fail(0, "nvmlDeviceGetComputeMode", code)
    with pytest.raises(ComputeModeError, match=f"{UUIDS[0]} does not report a compute mode .* Share it without MPS"):
        modes.read(UUIDS[0])
    assert modes.read(UUIDS[1]) is ComputeMode.DEFAULT


def test_a_failure_of_nvml_is_told_with_the_card(describe: Node, modes: NvmlComputeModes) -> None:
    """Every failure of NVML is, and so is a card that is not there."""
    node = describe(two_gpus())
    node.fail(0, "nvmlDeviceGetComputeMode", ErrorCode.GPU_IS_LOST)
    with pytest.raises(ComputeModeError, match=f"{UUIDS[0]} cannot be read"):
        modes.read(UUIDS[0])
    node.fail(0, SET, ErrorCode.GPU_IS_LOST)
    with pytest.raises(ComputeModeError, match=f"{UUIDS[0]} cannot be set to DEFAULT"):
        modes.set(UUIDS[0], ComputeMode.DEFAULT)
    unknown = UUIDS[0].replace("0", "7")
    with pytest.raises(ComputeModeError, match=f"the compute mode of {unknown} is not accessible"):
        modes.read(unknown)
