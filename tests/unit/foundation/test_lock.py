"""Tests of `foundation.lock`; more of what it promises is tested in `tests/unit/adapters/kubelet/test_claim.py`."""

import os
from pathlib import Path

import pytest

from gpushare_plugin.foundation.lock import LockedError, is_locked, lock


def test_others_see_that_it_is_held(short_path: Path) -> None:
    """Whether it is held can be asked at any time, does not disturb it, and needs no file to be there."""
    file = short_path / "lock"
    assert not is_locked(file)
    assert not file.exists()
    with lock(file) as held:
        assert is_locked(file)
        assert is_locked(file)
        assert held.stands
    assert not is_locked(file)
    with lock(file):
        assert is_locked(file)


def test_a_refusal_names_the_holder(short_path: Path) -> None:
    """Whoever comes second hears which file, and who has it."""
    file = short_path / "lock"
    with lock(file), pytest.raises(LockedError, match=f"process {os.getpid()} on ") as caught:
        lock(file)
    assert str(file) in str(caught.value)
    assert caught.value.holder.startswith(" (process ")


def test_what_cannot_be_asked_is_an_error(short_path: Path) -> None:
    """A path through a file is an error of the system, not a lock that is free."""
    (short_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        is_locked(short_path / "file" / "lock")
