"""Tests of the steps and their report."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_plugin.doctor.examination import DoctorReport
from gpushare_plugin.doctor.node.diagnosis import right, wrong
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeGpu, FakeProcess
from real_gpus.containers import Cgroups
from real_gpus.findings import Verdict
from real_gpus.node import Machine as NodeMachine
from real_gpus.steps import Subject, doctor, isolation_lists
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


def test_gpus_and_driver_are_compared_with_what_nvidia_smi_shows(place: Machine) -> None:
    """Another version of the driver than NVML tells is found out, and all else holds."""
    shown = Path(place.environment["PATH"].partition(":")[0], "nvidia-smi")
    gpu = f"0, ${{FAKE_CUDA%%,*}}, {GPU.name}, 00000000:07:00.0, 9.0, 81559, 480, Disabled, 560.1"
    shown.write_text(f'#!/bin/sh\necho "{gpu}"\n')
    shown.chmod(0o755)
    done = place.run("--only", "discovery")
    assert done.stdout.count("DOES NOT HOLD") == 1, done.stdout
    assert "DOES NOT HOLD: version of the driver: 570.86.15, expected 560.1" in done.stdout


def test_doctor_is_run_and_its_lines_are_told(place: Machine) -> None:
    """Without a card on the PCI bus, doctor has no line about NVML with which another step could be compared."""
    done = place.run("--only", "doctor")
    assert done.returncode == 0, done.stdout
    assert "holds: the exit status of gpushare doctor: 0" in done.stdout
    assert "measured: config: right: the node is judged by " in done.stdout
    assert "holds: control groups: doctor says what the other steps see: right" in done.stdout
    assert "skipped: NVML: doctor says what the other steps see: not looked at" in done.stdout


def test_lines_of_doctor_that_contradict_other_steps_do_not_hold() -> None:
    """A line that is wrong, that says something else, or that is missing contradicts; names are not told."""
    lines = (
        wrong("NVML", "GPU-0d41a773-8818-50c9-972e-fed9bf7583e8 does not answer", "reboot the node"),
        right("NVML", "driver 580.1; GPUs: 0 H100"),
        right("driver (kernel)", "570.2"),
        right("control groups", "version 2, controllers cpu"),
    )
    seen = {"NVML": "driver 580.1", "driver (kernel)": "580.1", "control groups": "version 2", "MPS": "serves"}
    found = list(doctor.compared(DoctorReport(right=3, wrong=1, not_looked_at=0, lines=lines), seen))
    assert "0d41a773" not in str(found)
    assert [each.verdict for each in found[: len(lines)]] == [Verdict.MEASURED] * 4
    assert [each.verdict for each in found[len(lines) :]] == [
        Verdict.FAILS,
        Verdict.FAILS,
        Verdict.HOLDS,
        Verdict.FAILS,
    ]


@pytest.mark.usefixtures("needs_mounts")
def test_a_list_of_isolations_is_taken_up_to_what_an_older_driver_has(place: Machine) -> None:
    """`driver` alone is refused, and a list says why not the first; a newer driver has other steps for that."""
    done = place.run("--only", "isolation-lists")
    assert done.returncode == 0, done.stdout
    assert "holds: check-config, isolation driver alone: exit status: 1" in done.stdout
    assert "holds: run, isolation [driver, none]: chosen: none" in done.stdout
    assert "holds: run, isolation [driver, mps]: chosen: mps" in done.stdout
    newer = Subject(NodeMachine([], Cgroups(), DRIVER_WITH_LIMITS, may_change=False), [])
    assert isolation_lists.has_limits(newer) == "driver 615.71.09 has driver limits, which other steps look at"


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
    """What is missing is said in words for people at the machine, and not for a pod."""
    done = Machine(tmp_path, {}).run()
    assert done.returncode == 1
    assert done.stderr.startswith("Error: nothing to report: NVIDIA's driver is not on this machine, or does not run (")
    assert "pod" not in done.stderr
    assert "runtimeClassName" not in done.stderr
    assert done.stderr.count("\n") == 1
