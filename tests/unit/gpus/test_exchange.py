"""Tests of `gpushare_plugin.gpus.exchange`: the directories in which two daemons meet."""

from pathlib import Path

import pytest

from gpushare_plugin.gpus.exchange import ExchangeError, refuse_one_directory
from gpushare_plugin.mig.exchange import MigRoot
from gpushare_plugin.mps.exchange import MpsRoot


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Return a root directory in which `var/run` leads to `run`, as on hosts with systemd."""
    (tmp_path / "run/nvidia").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to(tmp_path / "run")
    return tmp_path


@pytest.mark.parametrize("mig", ["var/run/nvidia/mps", "var/run/nvidia/mps/mig", "var/run/nvidia", "run/./nvidia/mps"])
def test_two_paths_that_lead_to_one_directory_are_refused(host: Path, mig: str) -> None:
    """Also where the directory is not there yet; the message names both, and what to do."""
    mps = MpsRoot(host / "run/nvidia/mps")
    with pytest.raises(ExchangeError, match=r"lead to one directory.* two directories beside each other"):
        refuse_one_directory(mps, MigRoot(host / mig))


def test_two_directories_beside_each_other_are_two(host: Path) -> None:
    """Whatever links lead to them."""
    refuse_one_directory(MpsRoot(host / "run/nvidia/mps"), MigRoot(host / "var/run/gpushare/mig"))
