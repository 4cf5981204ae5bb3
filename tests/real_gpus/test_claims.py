"""Tests of the steps about claims, with the stand-ins for NVML, MPS and CUDA."""

from pathlib import Path

import pytest

from real_gpus.findings import Verdict
from real_gpus.steps.claims import overridden
from tests.real_gpus.machine import machine


@pytest.mark.usefixtures("needs_mounts")
def test_containers_get_what_the_daemon_writes_into_cdi_specifications(tmp_path: Path) -> None:
    """A share has its limits whatever the env of the pod says, a whole GPU has none, and nothing is left behind."""
    with machine(tmp_path) as place:
        done = place.run("--only", "claims-mps", "--only", "claims-whole")
    assert done.returncode == 0, done.stdout
    assert "holds: an eighth: part of the GPU that computes, limit 12 %: 15 multiprocessors" in done.stdout
    assert "holds: a quarter: memory that a program gets before CUDA_ERROR_OUT_OF_MEMORY: 20079 MiB" in done.stdout
    assert "holds: a claim for more than is left: not allocated" in done.stdout
    assert "holds: memory that a program gets: 80678 MiB" in done.stdout
    assert done.stdout.count("holds: records and CDI specifications of claims after the end of all pods: none") == 2


@pytest.mark.long
def test_a_gpu_belongs_to_units_or_to_claims(tmp_path: Path) -> None:
    """The config changes both ways while a pod has the GPU."""
    with machine(tmp_path) as place:
        done = place.run("--only", "claims-hand-over")
    assert done.returncode == 0, done.stdout
    assert "holds: a claim can get the GPU while a pod holds units: False" in done.stdout
    assert "holds: units while a pod holds a claim: 0" in done.stdout


def test_a_variable_that_the_env_of_a_pod_decides_does_not_hold() -> None:
    """A container with the value of its pod does not have the limit of its claim."""
    own = {"LIMIT": "100", "PATH": "/own"}
    assert overridden("share", own, {"LIMIT": "10", "PATH": "/mps"}).verdict is Verdict.HOLDS
    kept = overridden("share", own, {"LIMIT": "10", "PATH": "/own"})
    assert (kept.found, kept.verdict) == ("PATH", Verdict.FAILS)
