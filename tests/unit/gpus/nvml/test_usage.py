"""Tests of `gpushare_plugin.gpus.nvml.usage`, with the real `pynvml` and a stand-in for the library."""

import os
from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.usage import HOST, GpuUsage, Owner, Process
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu, FakeMigInstance, FakeProcess
from tests.unit.gpus.conftest import Node

UID = "7b0f9c3a-1b2c-4d5e-8f90-123456789abc"
ID = "0123456789abcdef" * 4
COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """Return a `/proc` of the host with processes 1 to 9, all of one container, which began when the machine did."""
    proc = tmp_path / "proc"
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to("pid:[4026531836]")
    for pid in range(1, 10):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(f"{pid} (program-{pid}) S " + " ".join(["0"] * 30))
        (proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")
    return proc


def sampled(procfs: Path, times: int = 1) -> tuple[GpuUsage, ...]:
    """Return how the GPUs are used, at the last of so many looks."""
    source = NvmlSource(procfs.parent / "driver-root", procfs.parent / "sys", procfs)
    source.read()
    for _ in range(times - 1):
        source.sample()
    return source.sample()


def found(sample: GpuUsage) -> dict[int, tuple[int | None, float | None]]:
    """Return MiB and utilization of each process, by its ID."""
    return {each.pid: (each.memory and each.memory // MIB, each.utilization) for each in processes_of(sample)}


def processes_of(sample: GpuUsage) -> tuple[Process, ...]:
    """Return the processes of a GPU, where the driver tells them."""
    assert sample.processes is not None
    return sample.processes


def test_a_gpu_has_memory_work_and_processes(describe: Node, procfs: Path) -> None:
    """Memory is without what the driver keeps; each process has its program, its owner, and what it uses."""
    processes = (FakeProcess(1, 300, 40), FakeProcess(2, 100))
    describe([FakeGpu(memory_mib=40960, reserved_mib=512, used_mib=500, utilization=45, processes=processes)])
    (sample,) = sampled(procfs)
    assert (sample.memory_total, sample.memory_used) == (40448 * MIB, 500 * MIB)
    assert (sample.utilization, sample.unknown) == (0.45, None)
    assert found(sample) == {1: (300, 0.4), 2: (100, 0.0)}
    assert {(each.program, each.owner) for each in processes_of(sample)} == {
        ("program-1", Owner(UID, ID)),
        ("program-2", Owner(UID, ID)),
    }


def test_clients_of_mps_and_programs_that_draw_count_too(describe: Node, procfs: Path) -> None:
    """NVML has three lists of processes; one that is in several of them is one process."""
    processes = (
        FakeProcess(1, 30),
        FakeProcess(2, 300, kind="mps"),
        FakeProcess(3, 50, kind="graphics"),
        FakeProcess(4, None),
        FakeProcess(4, 70, kind="graphics"),
    )
    describe([FakeGpu(processes=processes)])
    (sample,) = sampled(procfs)
    assert {pid: mib for pid, (mib, _) in found(sample).items()} == {1: 30, 2: 300, 3: 50, 4: 70}
    assert sample.mps_clients == 1


def test_clients_of_mps_that_ended_are_not_counted(describe: Node, procfs: Path) -> None:
    """NVML may list a client longer than it lives; the server of MPS is none, as it stands in another list."""
    clients = (FakeProcess(pid, 30, kind="mps") for pid in (2, 3, 100))
    describe([FakeGpu(processes=(FakeProcess(1, 30), *clients))])
    (sample,) = sampled(procfs)
    assert (sample.mps_clients, set(found(sample))) == (2, {1, 2, 3})


def test_memory_that_the_driver_does_not_know_is_not_zero(describe: Node, procfs: Path) -> None:
    """NVML_VALUE_NOT_AVAILABLE is no amount."""
    describe([FakeGpu(processes=(FakeProcess(1, None),))])
    assert found(sampled(procfs)[0]) == {1: (None, 0.0)}


def test_a_process_that_ended_is_left_out(describe: Node, procfs: Path) -> None:
    """NVML may list a process that the kernel does not have any more."""
    describe([FakeGpu(processes=(FakeProcess(1, 30), FakeProcess(100, 30)))])
    assert found(sampled(procfs)[0]).keys() == {1}


def test_a_process_that_has_the_id_of_another_is_left_out(describe: Node, procfs: Path) -> None:
    """One that began after NVML was asked cannot be the one that NVML saw."""
    later = os.sysconf("SC_CLK_TCK") * 10**9
    (procfs / "1/stat").write_text("1 (other) S " + " ".join(["0"] * 18) + f" {later} 0")
    describe([FakeGpu(processes=(FakeProcess(1, 30),))])
    assert found(sampled(procfs)[0]) == {}


def test_work_is_counted_from_the_last_look(describe: Node, procfs: Path) -> None:
    """Each look asks for what is newer than what the one before saw."""
    describe([FakeGpu(processes=(FakeProcess(1, 30, 50),))])
    assert found(sampled(procfs, times=3)[0]) == {1: (30, 0.5)}


def test_an_instance_has_its_own_processes(describe: Node, procfs: Path) -> None:
    """The processes of an instance are not counted again for its card; how busy it is, NVML does not say."""
    instances = (FakeMigInstance(used_mib=7, processes=(FakeProcess(1, 30),)), FakeMigInstance())
    describe([FakeGpu(mig_enabled=True, used_mib=9, mig_instances=instances)])
    card, first, second = sampled(procfs)
    assert (card.memory_used, found(card), card.utilization) == (9 * MIB, {}, None)
    assert (first.memory_used, found(first), first.utilization) == (7 * MIB, {1: (30, None)}, None)
    assert found(second) == {}


def test_a_card_that_does_not_list_processes_says_so(describe: Node, procfs: Path) -> None:
    """Where NVML does not know who uses a card, that is the reason; memory is still known."""
    describe([FakeGpu(used_mib=5, failures={COMPUTE: ErrorCode.NOT_SUPPORTED}), FakeGpu()])
    first, second = sampled(procfs)
    assert (first.memory_used, first.processes) == (5 * MIB, None)
    assert "does not report the processes of GPU 0" in str(first.unknown)
    assert second.unknown is None


@pytest.mark.parametrize("code", [ErrorCode.NOT_SUPPORTED, ErrorCode.FUNCTION_NOT_FOUND])
def test_values_that_a_card_does_not_report_are_unknown(describe: Node, procfs: Path, code: ErrorCode) -> None:
    """Old cards and drivers lack some calls; whatever else is known is there."""
    lacking = (
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2",
    )
    describe([FakeGpu(used_mib=5, processes=(FakeProcess(1, 30, 50),), failures=dict.fromkeys(lacking, code))])
    (sample,) = sampled(procfs)
    assert (sample.memory_used, sample.utilization, sample.unknown) == (5 * MIB, None, None)
    assert found(sample) == {1: (30, None)}
    assert sample.mps_clients is None


def test_a_driver_before_510_has_memory_and_work_of_gpus_alone(describe: Node, procfs: Path) -> None:
    """Such a driver has none of the calls of version 3: the reason names the drivers that have them."""
    lacking = (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2",
    )
    failures = dict.fromkeys(lacking, ErrorCode.FUNCTION_NOT_FOUND)
    describe([FakeGpu(used_mib=5, utilization=45, processes=(FakeProcess(1, 30, 50),), failures=failures)])
    (sample,) = sampled(procfs)
    assert (sample.memory_used, sample.utilization, sample.processes) == (5 * MIB, 0.45, None)
    assert str(sample.unknown).startswith("the driver does not report the processes of GPU 0")
    assert str(sample.unknown).endswith("; drivers since 510 do")


def test_a_lost_card_is_left_out(describe: Node, procfs: Path) -> None:
    """One card that does not answer takes nothing from the others."""
    node = describe([FakeGpu(), FakeGpu(processes=(FakeProcess(1, 30),))])
    source = NvmlSource(procfs.parent / "driver-root", procfs.parent / "sys", procfs)
    source.read()
    node.fail(0, "*", ErrorCode.GPU_IS_LOST)
    assert [found(sample).keys() for sample in source.sample()] == [{1}]


def test_processes_are_unknown_without_the_hosts_process_ids(describe: Node, procfs: Path) -> None:
    """In another PID namespace the same numbers are other processes: what a GPU uses is known, by whom is not."""
    (procfs / "self/ns/pid").unlink()
    (procfs / "self/ns/pid").symlink_to("pid:[4026532481]")
    describe([FakeGpu(used_mib=5, processes=(FakeProcess(1, 30),))])
    (sample,) = sampled(procfs)
    assert (sample.memory_used, sample.processes) == (5 * MIB, None)
    assert "hostPID" in str(sample.unknown)


def test_usage_has_no_gpu_before_the_first_look(procfs: Path) -> None:
    """Only GPUs that were read are looked at; NVML is not initialised for that."""
    assert NvmlSource(procfs.parent / "driver-root", procfs.parent / "sys", procfs).sample() == ()


def test_a_process_of_no_container_is_the_hosts(describe: Node, procfs: Path) -> None:
    """A program that runs beside the kubelet has no owner."""
    (procfs / "1/cgroup").write_text("0::/user.slice\n")
    describe([FakeGpu(processes=(FakeProcess(1, 30),))])
    assert [each.owner for each in processes_of(sampled(procfs)[0])] == [HOST]
