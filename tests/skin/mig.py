"""A node whose MIG instances are made as they are wanted: the files between `run` and `mig`, and a fault of a GPU."""

import json
from pathlib import Path

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml
from tests.process.daemon import process, running
from tests.skin.golden import Texts, as_json, masked, settled
from tests.skin.logs import lines, undocumented
from tests.skin.node import EVENTS, NODE, NODES, shown, told_of

SMALL, LARGE = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
SHOWN = {"mig_instance_created", "gpu_unhealthy"}


async def recorded(folder: Path) -> Texts:
    """Return what is exchanged, written and given to a container, and what is told of an XID."""
    texts, root = Texts(), folder / "mig"
    cards = [FakeGpu(mig_enabled=True, mig_profiles="A100-40GB"), FakeGpu()]
    with FakeNvml(cards) as node:
        async with ApiServer() as server, EmbeddedKubelet(folder) as kubelet:
            wanted = {"version": 1, "gpus": {node.gpus[0].uuid: {"3g.20gb@4": 1, "1g.5gb@0": 1}}}
            for section, key, value in (
                ("labels", "nos.nebuly.com/gpu-partitioning", "mig"),
                ("annotations", "gpushare/wanted-slices", json.dumps(wanted)),
            ):
                server.store.update(NODES, NODE, {("metadata", section, key): value})
            environment = {
                **node.environment,
                "NODE_NAME": NODE,
                "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig")),
                "POD_RESOURCES_SOCKET": str(kubelet.pod_resources_socket),
            }
            options = ("--mig-root", root, "--container-driver-root", folder / "driver-root")
            on = ("--partitioning", "true", "--events", "true", "--node-labels", "false")
            async with (
                running(kubelet, *options, *on, environment=environment) as daemon,
                process("mig", *options, environment=environment) as mig,
            ):
                await kubelet.wait_for(lambda seen: all(seen.allocatable().get(each) == 1 for each in (SMALL, LARGE)))
                for name in ("wanted.json", "status.json"):
                    texts[f"mig/{name}"] = await settled((root / name).read_text, f"mig/{name}", "3g.20gb@4")
                texts["mig/files.txt"] = "".join(f"{each.name}\n" for each in sorted(root.iterdir()))
                texts["mig/node.json"] = await settled(lambda: shown(server), "mig/node.json", LARGE)
                admitted = await kubelet.admit(Pod("pod", [Container("main", {LARGE: 1})]))
                texts["mig/container.json"] = as_json(dict(admitted.containers["main"].environment))
                node.raise_event(1, data=79)
                await daemon.logged("gpu_unhealthy")
                texts["mig/unhealthy.json"] = await settled(lambda: shown(server), "mig/unhealthy.json", "XID 79")

                def events() -> str:
                    found = {told_of(each) for each in server.store.find(EVENTS) if "Unhealthy" in each["reason"]}
                    return "".join(f"{each}\n" for each in sorted(found))

                texts["mig/events.txt"] = await settled(events, "mig/events.txt", "XID 79")
                texts["mig/log.txt"] = lines([*daemon.log, *mig.log], SHOWN)
                assert undocumented([*daemon.log, *mig.log]) == []
    return {name: masked(text, folder=folder) for name, text in texts.items()}
