"""Tests of `gpushare_plugin.mps.shared_memory`, in mount namespaces of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import ROOT


@pytest.fixture(autouse=True)
def _mounting() -> None:
    """Leave these tests out where this user may make no mounts."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:  # noqa: S607
        pytest.skip("making mounts needs a mount namespace of our own, and this user may not have one")


def seen(folder: Path, propagation: str) -> dict[str, Any]:
    """Return what the program tells of its mounts."""
    command: list[str | Path] = [
        "unshare",
        "-m",
        sys.executable,
        "-m",
        "tests.unit.mps.mounts",
        folder,
        propagation,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_limit_of_shared_memory_holds_for_all(short_path: Path) -> None:
    """Data beyond the limit does not fit, wherever it is written; host, daemon and containers see the same.

    Another limit keeps what is there, one that is too small for it is refused, and nothing is mounted twice.
    """
    found = seen(short_path, "shared")
    less = found.pop("less")
    assert "a tmpfs of MiB cannot be mounted" in less
    assert found == {
        "reason": "",
        "one MiB fits": True,
        "four MiB fit": False,
        "one for all": True,
        "more": "",
        "four MiB fit in more": True,
        "kept": True,
        "mounts": 1,
    }


def test_a_mount_that_nobody_would_see_is_not_made(short_path: Path) -> None:
    """Without propagation to the host pods would have other memory than servers; it is refused, with what to do."""
    found = seen(short_path, "private")
    assert "mountPropagation: Bidirectional" in found["reason"]
    assert found["mounts"] == 0
    assert found["one for all"]
    assert found["four MiB fit"]
