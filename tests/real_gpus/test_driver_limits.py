"""Tests of the steps about driver limits, with the stand-ins for NVML and CUDA over a described tree of cgroups."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gpushare_plugin.observe.node.report import GpuReport
from gpushare_plugin.testing.cgroups import CgroupTree, processes_of
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, LimitBackend
from gpushare_plugin.testing.runtime import hook as hook_program
from real_gpus.containers import Cgroups
from real_gpus.findings import Finding, Verdict
from real_gpus.limits_hook import why_no_hook
from real_gpus.node import Machine
from real_gpus.steps import Subject, driver_limits
from tests.real_gpus.driver import Driver, serving
from tests.real_gpus.machine import GPU, with_cuda
from tests.unit.gpus.conftest import Node, describe

__all__ = ["describe"]

Look = Callable[[Subject], AsyncIterator[Finding]]


class DescribedCgroups(Cgroups):
    """Cgroups of a described tree, which has no kernel that fills a new directory."""

    def __init__(self, tree: CgroupTree) -> None:
        """Make the cgroups in `tree`."""
        super().__init__(tree.root)
        self._tree = tree
        self._made = 0
        self.counted_by = "dmem" if "dmem" in (tree.root / "cgroup.controllers").read_text() else "misc"

    def of(self, pod_uid: str) -> str:
        """Make the cgroup of a container."""
        self._made += 1
        return str(self._tree.make(f"ours/kubepods/pod{pod_uid}/{self._made:064}"))

    def make_again(self, cgroup: Path) -> None:
        """Remove a cgroup whose programs have ended, and make it again."""
        for pid in processes_of(cgroup):
            self._tree.leave(cgroup, pid)
        self._tree.remove(cgroup)
        self._tree.make(str(cgroup.relative_to(self._tree.root)))


@pytest.fixture(params=["misc", "dmem"])
def subject(
    request: pytest.FixtureRequest, describe: Node, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    """Have a machine with one GPU, whose driver has limits by one of its backends."""
    backend: LimitBackend = request.param
    nvml = describe([GPU], driver_version=DRIVER_WITH_LIMITS, limit_backend=backend, kernel_refuses=True)
    tree = CgroupTree(short_path / "cgroup", ("cpu", backend), nvml.regions if backend == "dmem" else None)
    socket = short_path / "driver.sock"
    with FakeMps() as mps, serving(Driver(nvml, tree.root), socket):
        given = {**mps.environment, **with_cuda(short_path, nvml), "FAKE_CUDA_DRIVER": str(socket)}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        (gpu,) = nvml.gpus
        shown = GpuReport(index=0, uuid=gpu.uuid, name=gpu.name, memory_mib=gpu.memory_mib - gpu.reserved_mib)
        yield Subject(Machine([gpu.uuid], DescribedCgroups(tree), DRIVER_WITH_LIMITS, may_change=False), [shown])


@pytest.mark.parametrize(
    "look",
    [
        driver_limits.library,
        driver_limits.memory,
        driver_limits.processes,
        driver_limits.uncounted,
        driver_limits.above,
        driver_limits.escapes,
    ],
)
async def test_what_is_said_of_driver_limits_holds_for_the_stand_ins(look: Look, subject: Subject) -> None:
    """Every statement that NVIDIA's documentation makes holds for stand-ins that follow it."""
    findings = [finding async for finding in look(subject)]
    assert findings
    assert [finding for finding in findings if finding.verdict is Verdict.FAILS] == []


@pytest.mark.usefixtures("needs_mounts")
async def test_a_client_of_mps_is_held_by_the_driver_whatever_it_lists(subject: Subject) -> None:
    """A deliberate list drops the limits of MPS, and not the limit of the cgroup."""
    findings = [finding async for finding in driver_limits.under_mps(subject)]
    assert [finding for finding in findings if finding.verdict is Verdict.FAILS] == []
    assert len(findings) > 3


async def test_a_driver_that_does_not_count_is_found_out(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the limit is set and programs get more all the same, the statements about that do not hold."""
    monkeypatch.delenv("FAKE_CUDA_DRIVER")
    wrong = [each async for each in driver_limits.memory(subject) if each.verdict is Verdict.FAILS]
    assert "memory that a program gets before a refusal" in [finding.statement for finding in wrong]


HOOK = """\
#!{python}
import json, subprocess, sys
from pathlib import Path
if "--version" in sys.argv:
    print("NVIDIA Container Toolkit CDI Hook version {version}")
    sys.exit()
cgroups, procfs, state = Path("{cgroups}"), Path("{procfs}"), sys.stdin.read()
pid = str(json.loads(state)["pid"])
found = next(each.parent for each in cgroups.rglob("cgroup.procs") if pid in each.read_text().split())
(procfs / pid).mkdir(parents=True, exist_ok=True)
(procfs / pid / "cgroup").write_text(f"0::/{{found.relative_to(cgroups)}}")
arguments = ["{hook}", "both", str(cgroups), str(procfs), *sys.argv[1:]]
sys.exit(subprocess.run([sys.executable, *arguments], input=state, text=True).returncode)
"""


def with_hook(folder: Path, cgroups: Path, version: str) -> None:
    """Install NVIDIA's hook of a version in `folder`: the stand-in, for processes in described cgroups."""
    program = folder / "nvidia-cdi-hook"
    program.write_text(
        HOOK.format(
            python=sys.executable, version=version, cgroups=cgroups, procfs=folder / "proc", hook=hook_program.__file__
        )
    )
    program.chmod(0o755)


async def test_the_hook_of_nvidia_is_run_as_a_runtime_runs_it(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that does nothing without both variables sets the limit with both, and none with one of them."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with_hook(tmp_path, subject.machine.cgroups.root.parent, "1.20.1")
    assert why_no_hook() is None
    findings = [finding async for finding in driver_limits.hook(subject)]
    assert [finding for finding in findings if finding.verdict is Verdict.FAILS] == []
    told = {finding.statement: finding.found for finding in findings}
    assert told["the limit that the hook sets with only the limit, MiB"] == "none"
    with_hook(tmp_path, subject.machine.cgroups.root.parent, "1.18.2")
    assert "has version 1.18.2, and the hook is in 1.20.1 and newer" in (why_no_hook() or "")
