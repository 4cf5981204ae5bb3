"""Claims under MPS with protocol 3: each has a namespace with its limits before a container starts."""

from contextlib import AsyncExitStack
from pathlib import Path

from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.mps.exchange import MpsRoot, MpsSettings
from gpushare_plugin.testing.kubelet import ClaimEntry, Container
from tests.node.claims.node import CARD, ClaimNode, claim_node
from tests.node.starting import start
from tests.node.test_mps_namespaces import as_on_the_host
from tests.unit.sharing.settings import GPU_MEM

MPS = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: mps}]}}"
DRIVER = "615.71.09"


def namespaces(node: ClaimNode) -> set[tuple[int, int]]:
    """Return memory and percentage of the namespaces that `gpushare mps` is asked for."""
    wanted = read_message(MpsRoot(node.folder / "mps").wanted, MpsSettings) or MpsSettings()
    return {(each.memory_limit_mib, each.active_thread_percentage) for each in wanted.namespaces}


async def test_a_claim_has_a_namespace_from_its_preparation_to_its_end(short_path: Path) -> None:
    """The socket of the namespace exists when the claim is prepared; a daemon that starts again keeps the namespace."""
    async with claim_node(short_path, driver=DRIVER) as node, node.keeper():
        node.flags = f"{{mpsRoot: {node.folder / 'mps'}, mpsProtocol: 3}}"
        node.configure(MPS)
        small, large = node.pod("small", {"memory": "10Gi"}), node.pod("large", {"memory": "20Gi", "compute": "70"})
        async with node.daemon() as daemon:
            await node.devices(daemon, 1)
            for pod in (small, large):
                node.scheduler.schedule(pod)
                started = (await node.kubelet.admit(pod)).containers["main"]
                assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in node.environment_of(started)
                (leaf,) = node.mounts_of(started, "/mps/pipe")
                assert (leaf / "control").is_socket()
            assert namespaces(node) == {(10240, 12), (20480, 70)}
        async with node.daemon() as daemon:
            await daemon.logged("dra_plugin_registered")
            await node.kubelet.wait_for(lambda kubelet: bool(kubelet.connected_drivers))
            await node.kubelet.end(small)
            await daemon.until(lambda: namespaces(node) == {(20480, 70)}, "the end of a namespace")


async def test_units_and_a_claim_have_a_namespace_each(short_path: Path) -> None:
    """In one pod, on different GPUs: a program in each container has exactly the limits of its own container."""
    async with claim_node(short_path, CARD, CARD, driver=DRIVER) as node, node.keeper() as mps:
        node.flags = f"{{mpsRoot: {node.folder / 'mps'}, mpsProtocol: 3}}"
        node.configure(MPS, '{devices: ["1"]}')
        asked = {"memory": "10Gi", "compute": "70"}
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "capacity": {"requests": asked}}}]
        containers = Container("claim", claims=[ClaimEntry("gpu")]), Container("units", {GPU_MEM: 20})
        pod = node.pod_with("pod", requests, *containers)
        async with node.daemon() as daemon:
            await node.devices(daemon, 1)
            await daemon.advertises(node.kubelet, {GPU_MEM: 80})
            node.scheduler.schedule(pod)
            started = await start(node.kubelet, pod)
            (by_claim,) = node.mounts_of(started["claim"], "/mps/pipe")
            by_units = as_on_the_host(started["units"])
            card = {"NVIDIA_VISIBLE_DEVICES": node.nvml.gpus[1].uuid}  # by CDI, which the programs do not know
            environment = {**node.environment_of(started["claim"]), **card, "CUDA_MPS_PIPE_DIRECTORY": str(by_claim)}
            with mps.program(environment) as first, mps.program(by_units) as second:
                assert first.effective == {"memory_mib": {node.nvml.gpus[1].uuid: 10240}, "threads": 70}
                assert second.effective == {"memory_mib": {node.nvml.gpus[0].uuid: 20480}, "threads": 25}
            answer = mps.ask(node.folder / "mps/pipe", "namespace list --server=gpushare --format=csv,noheader")
            told = {tuple(line.split(",")[3:5]) for line in answer.splitlines() if not line.startswith("default")}
            assert told == {("10G", "70.00"), ("20G", "25.00")}


async def test_the_daemon_that_stands_by_prepares_claims_with_namespaces(short_path: Path) -> None:
    """The daemon that serves the node requests the namespace, and the one that follows keeps it; neither refuses."""
    async with claim_node(short_path, driver=DRIVER) as node, node.keeper():
        node.flags = f"{{mpsRoot: {node.folder / 'mps'}, mpsProtocol: 3}}"
        node.configure(MPS)
        small, large = node.pod("small", {"memory": "10Gi"}), node.pod("large", {"memory": "20Gi"})
        async with node.daemon() as old, AsyncExitStack() as stack:
            await node.devices(old, 1)
            new = await stack.enter_async_context(node.daemon("--stand-by", "true"))
            await node.connected(2)
            for pod in (small, large):
                node.scheduler.schedule(pod)
                started = (await node.kubelet.admit(pod)).containers["main"]
                (leaf,) = node.mounts_of(started, "/mps/pipe")
                assert (leaf / "control").is_socket()
            await new.logged("claim_prepared", times=2)
            assert namespaces(node) == {(10240, 12), (20480, 25)}
            await node.kubelet.end(small)
            await new.until(lambda: namespaces(node) == {(20480, 25)}, "the end of a namespace")
            assert await old.stop() == 0
            await new.logged("taking_over")
            assert namespaces(node) == {(20480, 25)}
            await node.kubelet.end(large)
            await new.until(lambda: not namespaces(node), "the end of the other namespace")
            assert not [*old.events("claim_refused"), *new.events("claim_refused")]
