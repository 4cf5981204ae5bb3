"""Tests of the steps and their report."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_plugin.testing.nvml import FakeGpu, FakeProcess
from real_gpus.containers import Cgroups
from tests.real_gpus.machine import GPU, Machine, machine


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Machine]:
    """Have a machine with one GPU."""
    with machine(tmp_path) as made:
        yield made


def test_containers_get_what_the_kubelet_allocates(place: Machine, tmp_path: Path) -> None:
    """A program sees the GPU of its container and, without isolation, gets more memory than its limit."""
    done = place.run("--only", "memory", "--report", tmp_path / "report.md")
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "report.md").read_text()
    assert "| limit in the environment, MiB | 19456 | 19456 | holds |" in report
    assert "| MiB that a program gets of 21504, limit 19456: nothing limits it | 21504 | 21504 | holds |" in report
    assert "| DOES NOT HOLD |" not in report


@pytest.mark.usefixtures("needs_mounts")
def test_programs_under_mps_have_the_limits_of_their_containers(place: Machine) -> None:
    """The limit of a slice holds for memory and compute; what a program sets itself is tried, and told."""
    done = place.run("--only", "mps-slices", "--only", "mps-escapes")
    assert done.returncode == 0, done.stdout
    assert "holds: slice-20gb: part of the GPU that computes, limit 25 %: 33 multiprocessors" in done.stdout
    assert "a program that is a second process: is limited" in done.stdout
    assert "a program that names a GPU that it does not see: gets more than its limit" in done.stdout
    assert "a program that leaves MPS: gets more than its limit: 11264 MiB, limit 9216 MiB; 132 multi" in done.stdout


@pytest.mark.usefixtures("needs_mounts")
def test_a_statement_that_does_not_hold_is_told_with_what_was_expected(place: Machine, tmp_path: Path) -> None:
    """The stand-in for CUDA knows no default limits of the control daemon: programs in replicas get too much."""
    done = place.run("--only", "mps-replicas", "--report", tmp_path / "report.md")
    assert done.returncode == 1
    assert "DOES NOT HOLD: replica: memory that a program gets before a refusal" in done.stdout
    assert "expected 19245 to 20269 MiB" in done.stdout
    assert "| DOES NOT HOLD |" in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("needs_mounts")
@pytest.mark.parametrize(
    "gpus",
    [[replace(GPU, memory_mib=8192)], [replace(GPU, mig_enabled=True), GPU, GPU]],
    ids=["small", "several, the first in MIG mode"],
)
def test_steps_fit_small_gpus_and_several_gpus(tmp_path: Path, gpus: list[FakeGpu]) -> None:
    """Shares are parts of the GPU that is shared; the others are offered whole, and no program sees them."""
    with machine(tmp_path, *gpus) as place:
        done = place.run("--only", "memory", "--only", "mps-escapes")
    assert done.returncode == 0, done.stdout
    assert "holds: a container that asks for more than is left: Allocate failed" in done.stdout
    assert "a program that leaves MPS: gets more than its limit" in done.stdout


def test_steps_that_a_machine_cannot_show_are_skipped_with_the_reason(tmp_path: Path) -> None:
    """Without CUDA no program runs; what does not need CUDA is shown all the same."""
    with machine(tmp_path, cuda=False) as place:
        steps = ("memory", "mps-fault", "driver-limits", "driver-limits-memory")
        done = place.run(*(word for step in steps for word in ("--only", step)))
    assert done.returncode == 0, done.stdout
    assert "skipped: the whole step: no program can use CUDA: " in done.stdout
    absent = "driver 570.86.15 has no driver limits, which drivers have from 615 on: expected absent"
    assert f"skipped: the whole step: {absent}" in done.stdout
    assert "holds: nvmlDeviceSetMemoryLimits_v1 in the library of driver 570.86.15: False" in done.stdout


def test_a_run_leaves_the_settings_of_the_gpus_as_they_were(place: Machine) -> None:
    """The last step compares them with what they were before."""
    done = place.run("--only", "driver-limits")
    assert "holds: GPU 0: compute mode: DEFAULT" in done.stdout
    assert "holds: GPU 0: processes: 0" in done.stdout
    assert "holds: cgroups of this run: removed" in done.stdout


def test_programs_that_use_a_gpu_are_left_alone(tmp_path: Path) -> None:
    """Where a program uses a GPU, no step begins."""
    with machine(tmp_path, use=FakeProcess(pid=os.getpid(), memory_mib=100)) as place:
        done = place.run()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: programs compute on GPU 0: ")


def test_a_machine_without_cgroups_of_version_2_has_none_for_containers(tmp_path: Path) -> None:
    """With cgroups of version 1, a folder where they are mounted is an ordinary one; nothing stays there."""
    with Cgroups(tmp_path) as cgroups:
        assert cgroups.of("uid") == ""
    assert cgroups.why_none == f"no cgroup can be made: {tmp_path} has no cgroups of version 2"
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    """One sentence says what is missing."""
    done = Machine(tmp_path, {}).run()
    assert done.returncode == 1
    assert done.stderr.startswith("Error: the GPUs of this machine cannot be listed: ")
    assert done.stderr.count("\n") == 1
