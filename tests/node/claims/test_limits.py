"""The limits of containers with claims are in effect, whatever sets them, and after restarts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import MemoryLimit
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.testing.kubelet import Pod, PrepareError
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS
from tests.node.claims.limited import USE, claiming, request, uses
from tests.node.limited import GPU_GIB, WAYS, Machine, Way, machine
from tests.node.test_limits_in_effect import CARDS, RESTARTS, SHARED
from tests.nodes import a_gpu
from tests.unit.gpus.conftest import Node, describe
from tests.waiting import until

__all__ = ["describe"]

WHOLE = 'device.attributes["gpu.gpushare.io"].way == "whole"'
BOTH = Way("driver", hook=True, agent=True)
BY_DRIVER = [name for name, way in WAYS.items() if "driver" in way.isolation]


@pytest.fixture(params=BY_DRIVER)
def prepared(describe: Node, short_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Describe a machine for each way to set limits of the driver."""
    nvml = describe(CARDS, driver_version=DRIVER_WITH_LIMITS)
    with machine(short_path, nvml, {**WAYS, "both": BOTH}[request.param], by_claim=True) as made:
        yield made


async def test_each_container_has_what_its_request_was_given(prepared: Machine) -> None:
    """Containers with a request each, a sidecar, an init container, and several GPUs in one request."""
    async with claiming(prepared) as node:
        node.claim("requests", *(request(name, size) for name, size in (("init", 5), ("side", 1), ("a", 3), ("b", 2))))
        inits = [uses("init", "init"), uses("sidecar", "side", sidecar=True)]
        await node.run_by_claim(Pod("requests", [uses("a", "a"), uses("b", "b")], inits, claims={USE: "requests"}))
        node.claim("gpus", request("both", 4, count=2))
        await node.run_by_claim(Pod("gpus", [uses("main")], claims={USE: "gpus"}))
        await node.holds()
        assert len(node.programs[-1].promised) == 2


async def test_each_container_of_a_claim_has_the_limit_of_the_claim(prepared: Machine) -> None:
    """Two containers of a pod, and one of another pod that came later, have one share each to its limit."""
    async with claiming(prepared) as node:
        node.claim("shared", request("gpu", 6))
        for pod in (
            Pod("first", [uses("a"), uses("b")], claims={USE: "shared"}),
            Pod("later", [uses("c")], claims={USE: "shared"}),
        ):
            await node.run_by_claim(pod)
        await node.holds()


# With protocol 3 of MPS, a program has to try again after a restart of MPS until the namespace of its claim is back.
@pytest.mark.parametrize("prepared", [name for name in BY_DRIVER if WAYS[name].protocol == 2], indirect=True)
async def test_restarts_leave_each_limit_in_effect(prepared: Machine) -> None:
    """Of containers, of the daemon, of its agents, of the kubelet and of the driver, one after the other."""
    async with claiming(prepared) as node:
        node.claim("requests", request("a", 3), request("b", 2))
        await node.run_by_claim(Pod("requests", [uses("a", "a"), uses("b", "b")], claims={USE: "requests"}))
        await node.holds()
        for restart in RESTARTS.values():
            await restart(node)
            await node.holds()


async def test_another_config_changes_no_limit_of_a_claim(prepared: Machine) -> None:
    """What a claim was given counts for each start of its containers; nor does a config without limits change it."""
    async with claiming(prepared) as node:
        node.claim("claim", request("gpu", 3))
        await node.run_by_claim(Pod("pod", [uses("main")], claims={USE: "claim"}))
        node.settings += "driverLimits: {additionalMemory: 512MiB}\n"
        await node.restart_daemon()
        await node.restart_containers()
        await node.holds()
        await node.configure(f"{SHARED}dra: {{}}\n")
        await node.holds()


# ---------------------------------------------------------------------- what only the agent does


@pytest.mark.parametrize("prepared", ["driver, by the agent"], indirect=True)
async def test_without_the_agent_no_claim_is_promised_a_limit(prepared: Machine) -> None:
    """Where no hook sets limits: the devices have a taint, and a claim is refused in words, until the agent is back."""
    async with claiming(prepared) as node:
        node.claim("claim", request("gpu", 3))
        pod = Pod("pod", [uses("main")], claims={USE: "claim"})
        node.scheduler.schedule(pod)
        await node.stop_agents()
        await until(lambda: node.taints == [["gpushare/not-limited"]] * 2, lambda: f"{node.taints}")
        with pytest.raises(PrepareError, match="no driver limits can be set: gpushare driver-limits"):
            await node.kubelet.admit(pod)
        await node.start_agents()
        await node.served()
        await node.kubelet.admit(pod)


@pytest.mark.parametrize("prepared", ["both"], indirect=True)
async def test_a_whole_gpu_beside_a_share_has_no_limit(prepared: Machine) -> None:
    """NVIDIA's hook gives all GPUs of a container the limit of the share; the agent puts that right."""
    async with claiming(prepared, prepared.way.settings.replace("gpu-mem,", "gpu-mem, devices: [0],")) as node:
        node.claim("claim", request("share", 3), request("whole", selectors=[{"cel": {"expression": WHOLE}}]))
        await node.run_by_claim(Pod("pod", [uses("main")], claims={USE: "claim"}))
        (program,) = node.programs
        assert program.promised == {0: 3072}
        await until(lambda: prepared.runtime.room(program.container, 1) == GPU_GIB * 1024)
        await node.holds()


@pytest.mark.parametrize("prepared", ["driver, by the agent"], indirect=True)
async def test_a_container_for_administration_has_no_limit(prepared: Machine) -> None:
    """Also where its cgroup has the limit that another container left behind."""
    async with claiming(prepared) as node:
        node.claim("admin", request("gpu", adminAccess=True))
        await node.run_by_claim(Pod("admin", [uses("main")], claims={USE: "admin"}))
        (program,) = node.programs
        NvmlMemoryLimits(prepared.folder, prepared.folder, prepared.folder).set(
            a_gpu(0).uuid, program.container.cgroup, MemoryLimit(1024 * MIB)
        )
        await until(lambda: prepared.runtime.room(program.container, 0) == GPU_GIB * 1024)
