"""A root for tests."""

from pathlib import Path

import pytest

from gpushare_plugin.adapters.host.mps.exchange import MpsRoot
from tests.unit.adapters.host.mps.roots import make_root


@pytest.fixture
def root(short_path: Path) -> MpsRoot:
    """Return an MPS root that has the directories the daemon needs."""
    return make_root(short_path)
