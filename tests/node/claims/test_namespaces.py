"""Claims under MPS with protocol 3: each has a namespace with its limits before a container starts."""

from pathlib import Path

from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.mps.exchange import MpsRoot, MpsSettings
from tests.node.claims.node import ClaimNode, claim_node

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
