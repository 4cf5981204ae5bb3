"""Test of the archive for machines without a network."""

import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from generators.gpu_bundle import LARGEST
from real_gpus.containers import why_no_mounts
from tests.real_gpus.machine import ROOT, machine

VERSION = ".".join(map(str, sys.version_info[:2]))


@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="archives are for machines with x86-64")
@pytest.mark.timeout(600)  # all packages are downloaded
def test_the_archive_runs_without_a_network_and_without_anything_installed(tmp_path: Path) -> None:
    """Unpacked in a network namespace without interfaces, the script shows what it shows after `make gpu`."""
    if (reason := why_no_mounts()) is not None:
        pytest.skip(reason)  # nor can there be a network namespace
    archive = tmp_path / "bundle.tar.gz"
    command = [sys.executable, "-m", "generators.gpu_bundle", VERSION, str(archive)]
    made = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert archive.stat().st_size <= LARGEST
    with tarfile.open(archive) as content:
        content.extractall(tmp_path, filter="data")
    with machine(tmp_path) as place:
        pythons = Path(sys.base_prefix) / "bin"
        path = f"{place.environment['PATH'].partition(':')[0]}:{pythons}:{os.defpath}"
        done = subprocess.run(
            ["/usr/bin/unshare", "--net", tmp_path / "bundle" / "gpu", "--only", "memory", "--only", "driver-limits"],
            env={**place.environment, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "holds: MiB that a program gets of 21504, limit 19456: nothing limits it: 21504" in done.stdout
