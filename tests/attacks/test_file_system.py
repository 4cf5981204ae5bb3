"""What a container can leave in a file system that the daemon reads, at its worst: cgroups that name other pods."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_plugin.core.usage import Owner
from gpushare_plugin.gpus.containers import owner
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml, FakeProcess
from tests.process.cgroups import Start, in_cgroups
from tests.process.daemon import running
from tests.unit.sharing.settings import GPU_MEM

GPU = FakeGpu(memory_mib=16384)
UID, VICTIM = "7b0f9c3a-1b2c-4d5e-8f90-123456789abc", "00000000-1b2c-4d5e-8f90-cba987654321"
ID, OTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4
CONFIG = """\
version: v1
health: {rescanSeconds: 1}
overuse: {action: report, graceSeconds: 0.5}
sharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}
"""


@pytest.mark.parametrize("place", [f"/kubepods/burstable/pod{UID}/{ID}", f"/../../pod{UID}/{ID}"])
@pytest.mark.parametrize(
    "made",
    [
        f"pod{VICTIM}/{OTHER}",
        f"kubepods/burstable/pod{VICTIM}/{OTHER}",
        f"kubepods-pod{VICTIM.replace('-', '_')}.slice/cri-containerd-{OTHER}.scope",
        f"kubepods-pod{VICTIM.replace('-', '_')}.slice:cri-containerd:{OTHER}",
        f"x\u2028:9:/kubepods/pod{VICTIM}/{OTHER}",
        f"x\x0b0::/kubepods/pod{VICTIM}/{OTHER}",
        OTHER,
    ],
)
def test_a_cgroup_below_that_of_a_pod_is_that_pods(place: str, made: str) -> None:
    """Whatever names a container gives to the cgroups that it makes, its processes stay those of its own pod."""
    for line in (f"0::{place}/{made}\n", f"9:pids:{place}/{made}\n8:memory:{place}\n0::/\n"):
        assert owner(line) == Owner(UID, ID)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes in cgroups of this test."""
    with in_cgroups() as begin:
        yield begin


async def test_a_pod_does_not_pay_for_what_another_pod_uses(
    start: Start, kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """A pod over its limit is named though its process is in a cgroup with the victim's UID, and the victim is not."""
    greedy, victim = (Pod(name, [Container("main", {GPU_MEM: 2})]) for name in ("greedy", "victim"))
    config = short_path / "config.yaml"
    config.write_text(CONFIG)
    files = ("--config-file", config, "--pod-resources-socket", kubelet.pod_resources_socket)
    with FakeNvml([GPU]) as node:
        async with running(kubelet, *files, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 16})
            for pod in (greedy, victim):
                await kubelet.admit(pod)
            pid = start(f"kubepods/burstable/pod{greedy.uid}/{ID}/kubepods/burstable/pod{victim.uid}/{OTHER}")
            node.replace_gpu(0, replace(GPU, used_mib=8000, processes=(FakeProcess(pid, 4096),)))
            over = await daemon.logged("pod_over_limit")
            assert (over["pod"], over["used_mib"]) == ("default/greedy", 4096)
            assert len(daemon.events("pod_over_limit")) == 1
