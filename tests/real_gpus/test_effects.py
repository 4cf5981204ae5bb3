"""Tests of the steps about what the daemon says of programs: with the stand-ins, and cgroups of this machine."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gpushare_plugin.observe.node.report import GpuReport, LimitEffect
from gpushare_plugin.testing.mps import FakeMps
from real_gpus.containers import Cgroups
from real_gpus.findings import Finding, Verdict
from real_gpus.node import Machine
from real_gpus.steps import Subject, claims, effects, shared
from tests.process.cgroups import HIERARCHIES
from tests.real_gpus.driver import Driver, serving
from tests.real_gpus.machine import GPU, with_cuda
from tests.unit.gpus.conftest import Node, describe

__all__ = ["describe"]

Look = Callable[[Subject], AsyncIterator[Finding]]


@pytest.fixture
def subject(describe: Node, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """Have a machine with one GPU, whose driver shows the programs, and whose MPS knows its clients."""
    nvml = describe([GPU])
    socket = short_path / "driver.sock"
    hierarchy = next((each for each in map(Path, HIERARCHIES) if (each / "cgroup.controllers").exists()), short_path)
    with Cgroups(hierarchy) as cgroups, FakeMps() as mps, serving(Driver(nvml, short_path / "nothing"), socket):
        if cgroups.why_none is not None:
            pytest.skip(cgroups.why_none)
        cuda = {"FAKE_CUDA_DRIVER": str(socket), "FAKE_CUDA_CLIENT": "1"}
        for name, value in {**mps.environment, **with_cuda(short_path, nvml), **cuda}.items():
            monkeypatch.setenv(name, value)
        (gpu,) = nvml.gpus
        memory_mib = gpu.memory_mib - gpu.reserved_mib
        shown = GpuReport(index=0, uuid=gpu.uuid, name=gpu.name, memory_mib=memory_mib, compute_capability="9.0")
        yield Subject(Machine([gpu.uuid], cgroups, nvml.driver_version, may_change=False), [shown])


async def test_the_daemon_says_who_exceeds_a_limit_and_nothing_of_limits_that_nothing_enforces(
    subject: Subject,
) -> None:
    """Every statement about the use of a GPU without isolation holds for the stand-ins."""
    findings = [finding async for finding in shared.usage(subject)]
    assert [finding for finding in findings if finding.verdict is not Verdict.HOLDS] == []
    assert findings[-2].statement == "what the daemon says of a limit that nothing enforces"


@pytest.mark.long
@pytest.mark.usefixtures("needs_mounts")
@pytest.mark.parametrize("look", [effects.limits, effects.replicas, claims.effects])
async def test_of_no_program_that_gets_more_than_its_limit_the_daemon_says_in_effect(
    look: Look, subject: Subject
) -> None:
    """The limit of a program that changes nothing is in effect; that of each program that gets more is not."""
    findings = [finding async for finding in look(subject)]
    assert [finding for finding in findings if finding.verdict is Verdict.FAILS] == []
    said = {finding.statement.partition(" that ")[2]: finding.found for finding in findings}
    assert said["leaves its environment alone and gets no more than its limit"] == "in effect"
    unseen = [said[each] for each in said if each.startswith("names a GPU that it does not see and gets more")]
    assert "so CUDA drops all limits" in unseen[0]


def test_a_limit_that_is_in_effect_for_a_program_that_gets_more_does_not_hold() -> None:
    """The daemon may say that it does not know, or that a limit is not in effect; it may not say nothing."""
    effect, missing = LimitEffect(state="in effect"), LimitEffect(state="unknown", reason="it is new")
    assert effects.judged("leaves MPS", "gets more", effect).verdict is Verdict.FAILS
    assert effects.judged("leaves MPS", "gets more", None).verdict is Verdict.FAILS
    assert effects.judged("leaves MPS", "gets more", missing)[2:] == ("unknown: it is new", Verdict.HOLDS)
    assert effects.judged("leaves MPS", "", effect).verdict is Verdict.MEASURED
    assert effects.judged("leaves its environment alone", "", effect).verdict is Verdict.HOLDS
    assert effects.judged("leaves its environment alone", "", missing).verdict is Verdict.FAILS
