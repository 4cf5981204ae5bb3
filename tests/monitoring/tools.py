"""Prometheus' own programs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def tool(name: str) -> str:
    """Return the path of a program of Prometheus; without it, skip the test, or fail it in continuous integration."""
    path = shutil.which(name)
    if path is None:
        message = f"there is no {name}: install Prometheus 2.42 or newer (Debian, Ubuntu: apt-get install prometheus)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


def promtool(*arguments: str | Path, given: bytes = b"") -> str:
    """Return what `promtool` prints; fails the test where it is not content."""
    done = subprocess.run([tool("promtool"), *arguments], input=given, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert not done.stderr, done.stderr.decode()
    return done.stdout.decode()
