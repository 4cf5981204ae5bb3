"""Cards that can be divided, for tests."""

from pathlib import Path

import pytest

from gpushare_plugin.gpus.nvml.partitions import NvmlPartitions
from tests.unit.gpus.conftest import describe

__all__ = ["describe"]


@pytest.fixture
def driver(tmp_path: Path) -> NvmlPartitions:
    """Make a driver whose files of the kernel are below the test's own directory."""
    return NvmlPartitions(tmp_path / "driver-root", tmp_path / "sys", tmp_path / "proc")
