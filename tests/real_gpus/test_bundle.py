"""Tests of the archive for machines without a network."""

import functools
import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from generators.gpu_bundle import LARGEST
from tests.real_gpus.machine import ROOT, machine

VERSION = ".".join(map(str, sys.version_info[:2]))
# network_namespaces(7): a new namespace has the loopback interface alone, which is down.
ALONE = 'test "$(grep --count : /proc/net/dev)" = 1 && exec "$@"'
WITHOUT_NETWORK = ("/usr/bin/unshare", "--net", "--", "sh", "-c", ALONE, "sh")
"""Starts a program without a network; fails where the program would have an interface."""


@functools.cache
def why_no_namespace() -> str | None:
    """Return why no program can be started without a network here; None if one can."""
    done = subprocess.run([*WITHOUT_NETWORK, "true"], capture_output=True, text=True, check=False)
    return f"a network namespace takes root: {done.stderr.strip()}" if done.returncode else None


@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="archives are for machines with x86-64")
@pytest.mark.timeout(600)  # all packages are downloaded
def test_the_archive_runs_without_a_network_and_without_anything_installed(tmp_path: Path) -> None:
    """Unpacked in a network namespace without interfaces, the script shows what it shows after `make gpu`."""
    if (reason := why_no_namespace()) is not None:
        pytest.skip(reason)
    archive = tmp_path / "bundle.tar.gz"
    command = [sys.executable, "-m", "generators.gpu_bundle", VERSION, str(archive)]
    made = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert archive.stat().st_size <= LARGEST
    with tarfile.open(archive) as content:
        content.extractall(tmp_path, filter="data")
    script = tmp_path / "bundle" / "gpu"
    steps = ["--only", "memory", "--only", "driver-limits"]
    with machine(tmp_path) as place:
        pythons = Path(sys.base_prefix) / "bin"
        path = f"{place.environment['PATH'].partition(':')[0]}:{pythons}:{os.defpath}"
        done = subprocess.run(
            [*WITHOUT_NETWORK, script, *steps],
            env={**place.environment, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "holds: MiB that a program gets of 21504, limit 19456: nothing limits it: 21504" in done.stdout
