"""Programs of MPS, and a root, for tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_plugin.mps.control import Control
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.testing.mps import FakeMps
from tests.unit.mps.roots import make_root


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMps]:
    """Let this process find the stand-in for nvidia-cuda-mps-control."""
    with FakeMps() as programs:
        for name, value in programs.environment.items():
            monkeypatch.setenv(name, value)
        yield programs


@pytest.fixture
def root(short_path: Path) -> MpsRoot:
    """Return an MPS root that has the directories the daemon needs."""
    return make_root(short_path)


@pytest.fixture
def control(root: MpsRoot) -> Control:
    """Return what speaks to the daemon of the root."""
    return Control(root.pipe, root.log)
