"""Tests of the steps about protocol 3 of MPS, with the stand-ins for NVML, MPS and CUDA."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gpushare_plugin.observe.node.report import GpuReport
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS
from real_gpus.containers import Cgroups
from real_gpus.findings import Finding, Verdict
from real_gpus.node import Machine
from real_gpus.steps import Subject, namespaces
from tests.real_gpus.machine import GPU, with_cuda
from tests.unit.gpus.conftest import Node, describe

__all__ = ["describe"]

Look = Callable[[Subject], AsyncIterator[Finding]]


@pytest.fixture
def subject(describe: Node, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """Have a machine with one GPU, whose MPS speaks protocol 3."""
    nvml = describe([GPU], driver_version=DRIVER_WITH_LIMITS)
    with FakeMps() as mps, Cgroups(short_path) as cgroups:
        given = {**mps.environment, **with_cuda(short_path, nvml), "FAKE_CUDA_CLIENT": "1"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        (gpu,) = nvml.gpus
        memory_mib = gpu.memory_mib - gpu.reserved_mib
        shown = GpuReport(index=0, uuid=gpu.uuid, name=gpu.name, memory_mib=memory_mib, compute_capability="9.0")
        yield Subject(Machine([gpu.uuid], cgroups, DRIVER_WITH_LIMITS, may_change=False), [shown])


@pytest.mark.usefixtures("needs_mounts")
@pytest.mark.parametrize("look", [namespaces.limits, namespaces.escapes])
async def test_what_is_said_of_protocol_3_holds_for_the_stand_ins(look: Look, subject: Subject) -> None:
    """Every statement that NVIDIA's documentation makes holds for stand-ins that follow it."""
    findings = [finding async for finding in look(subject)]
    assert findings
    assert [finding for finding in findings if finding.verdict is Verdict.FAILS] == []


@pytest.mark.usefixtures("needs_mounts")
async def test_a_list_of_its_own_drops_the_limit_of_a_program(subject: Subject) -> None:
    """So the step can tell a program that is held from one that is not."""
    findings = [finding async for finding in namespaces.escapes(subject)]
    (listed,) = [finding.found for finding in findings if "lists a limit of a GPU" in finding.statement]
    assert listed == str(9216 + 2048)
