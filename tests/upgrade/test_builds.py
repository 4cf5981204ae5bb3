"""Where the old build comes from, and what is said where it cannot come from anywhere."""

import subprocess
from pathlib import Path

import pytest

from tests.upgrade import builds
from tests.upgrade.builds import OLD, Build, HistoryMissingError, old_build


def git(folder: Path, *arguments: str | Path) -> None:
    """Run git in a folder."""
    command = ("git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments)
    subprocess.run(command, check=True, capture_output=True)


def test_both_builds_are_imported_from_folders_of_their_own(old: Build, new: Build) -> None:
    """The fixtures have seen that, and the old build is complete."""
    assert not new.root.is_relative_to(old.root)
    assert not old.root.is_relative_to(new.root)
    assert (old.root / "gpushare_plugin" / "__main__.py").exists()


def test_a_folder_without_history_names_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unpacked archive is no clone, also within one of something else."""
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    monkeypatch.setattr(builds, "ROOT", unpacked)
    with pytest.raises(HistoryMissingError, match=f"the commit {OLD}, .* is missing: this is no clone"):
        old_build(tmp_path)
    git(tmp_path, "init")
    with pytest.raises(HistoryMissingError, match="this is no clone"):
        old_build(tmp_path)


def test_a_shallow_clone_names_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone of the last commit alone says how to get the others; in a whole one the commit must be there."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init")
    for message in ("one", "two"):
        git(origin, "commit", "--allow-empty", "-m", message)
    git(tmp_path, "clone", "--depth", "1", origin.as_uri(), clone)
    monkeypatch.setattr(builds, "ROOT", clone)
    with pytest.raises(HistoryMissingError, match=f"the commit {OLD}, .* is missing: .*git fetch --unshallow"):
        old_build(tmp_path)
    monkeypatch.setattr(builds, "ROOT", origin)
    with pytest.raises(subprocess.CalledProcessError):
        old_build(tmp_path)
