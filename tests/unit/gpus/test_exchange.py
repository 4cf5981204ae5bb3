"""Tests of `gpushare_plugin.gpus.exchange`: the directories in which two daemons meet."""

from pathlib import Path

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.gpus.exchange import AgentFiles, DesiredFile, ExchangeError, refuse_one_directory, write_message
from gpushare_plugin.mig.exchange import MigOrder, MigRoot, MigStatus
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


def test_an_unreadable_file_leaves_what_is_desired_unchanged(tmp_path: Path) -> None:
    """Each problem is raised once, and stays as the reason until the file can be read again."""
    file = tmp_path / "wanted.json"
    desired = DesiredFile(file, MigOrder)
    assert not desired.known
    assert not desired.read()
    assert (desired.known, desired.missing, desired.message) == (True, True, MigOrder())
    write_message(file, MigOrder(revision=1))
    assert desired.read()
    assert not desired.read()
    for content, problem in ("{", "the whole file"), ('{"version": 2}', "version"):
        file.write_text(content)
        with pytest.raises(ExchangeError, match=problem):
            desired.read()
        assert not desired.read()
        assert problem in (desired.problem or "")
        assert (desired.missing, desired.message) == (False, MigOrder(revision=1))
    write_message(file, MigOrder(revision=1))
    assert not desired.read()
    assert desired.problem is None


def test_a_daemon_is_seen_with_its_status_while_it_runs(tmp_path: Path) -> None:
    """Without the lock the status does not count; what cannot be written is the trouble whatever the status."""
    root = MigRoot(tmp_path / "mig")
    files = AgentFiles(root, MigStatus)
    files.write(MigOrder(revision=1))
    write_message(root.status, MigStatus(revision=1))
    seen = files.look()
    assert (seen.status, seen.runs) == (None, False)
    assert "partitioning.mig.enabled: true starts it" in (seen.trouble or "")
    with lock(root.lock):
        seen = files.look()
        assert (seen.status, seen.runs, seen.trouble) == (MigStatus(revision=1), True, None)
        root.wanted.unlink()
        root.wanted.mkdir()
        with pytest.raises(ExchangeError, match=r"what is wanted cannot be written for gpushare mig: .*wanted\.json"):
            files.write(MigOrder(revision=2))
        files.write(MigOrder(revision=2))  # the same problem is raised once
        assert files.look().trouble == files.trouble
        assert files.trouble is not None
        root.wanted.rmdir()
        files.write(MigOrder(revision=2))
        assert files.look().trouble is None
        root.status.write_text("{")
        assert (files.look().status, files.look().runs) == (None, None)
