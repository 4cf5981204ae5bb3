"""What `gpushare partition` writes for pods that wait for slices, and serves."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import answer, comes_to_answer, process
from tests.skin.cluster import LEASES, NODES, PODS, uid, uuid
from tests.skin.golden import Texts, as_json, masked, settled, unfolded
from tests.skin.logs import lines, undocumented
from tests.skin.node import told_of
from tests.skin.pages import page

EVENTS = "/api/v1/namespaces/team/events"
ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}
SHOWN = {"starting", "stopping", "stopped"}
_ADDED = {"uid", "resourceVersion", "creationTimestamp", "managedFields"}


def _node(name: str, number: int, record: dict[str, Any], way: str) -> dict[str, Any]:
    annotations = {"gpushare/gpus": json.dumps({"version": 1, "resources": [], **record, "partitioning": way})}
    metadata = {"name": name, "annotations": annotations, "labels": {"nos.nebuly.com/gpu-partitioning": way}}
    return {"metadata": {**metadata, "uid": uid(1000 + number)}, "spec": {}, "status": {"allocatable": ROOM}}


def _gpu(node: int, index: int, **more: Any) -> dict[str, Any]:
    about = {"index": index, "uuid": uuid(node, index), "product": "NVIDIA A100-SXM4-40GB", "memoryMiB": 40960}
    return {**about, "units": 0, "unitMiB": 0, "healthy": True, **more}


_PROFILES = [
    {"name": "1g.5gb", "starts": [0, 1, 2, 3, 4, 5, 6], "size": 1, "compute": 1, "most": 7},
    {"name": "3g.20gb", "starts": [0, 4], "size": 4, "compute": 3, "most": 2},
]


def _pod(number: int, name: str, resource: str) -> dict[str, Any]:
    metadata = {"name": name, "uid": uid(number), "creationTimestamp": f"2026-01-01T00:00:{number:02}Z"}
    limits = {"limits": {resource: "1"}}
    spec = {"containers": [{"name": "main", "resources": limits}], "schedulerName": "default-scheduler"}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", "conditions": [unschedulable]}}


async def recorded(folder: Path) -> Texts:
    """Return what is wanted of an MPS node and of a MIG node for pods that wait, and what these are told."""
    probes, texts = claim_port(), Texts()
    async with ApiServer() as server:
        server.store.create(NODES, _node("mps-1", 1, {"gpus": [_gpu(1, 0), _gpu(1, 1)]}, "mps"))
        mig = _gpu(2, 0, profiles=_PROFILES)
        server.store.create(NODES, _node("mig-1", 2, {"gpus": [mig]}, "mig"))
        names = {
            "ten": "nvidia.com/gpu-10gb",
            "forty": "nvidia.com/gpu-40gb",
            "eighty": "nvidia.com/gpu-80gb",
            "three": "nvidia.com/mig-3g.20gb",
            "seven": "nvidia.com/mig-7g.40gb",
        }
        for number, (name, resource) in enumerate(names.items(), start=1):
            server.store.create(PODS, _pod(number, name, resource))

        def shown(name: str) -> str:
            (found,) = server.store.find(NODES, name)
            annotations = {key: value for key, value in found["metadata"]["annotations"].items() if "wanted" in key}
            return masked(as_json(unfolded(json.dumps(annotations))))

        def events() -> str:
            found = {told_of(each) for each in server.store.find(EVENTS)}
            return masked("".join(f"{each}\n" for each in sorted(found)))

        environment = {"KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig"))}
        options = ("--probe-address", f"127.0.0.1:{probes}", "--patience", "3600")
        async with process("partition", *options, environment=environment) as daemon:
            await comes_to_answer(probes, "/readyz", (200, "ok\n"))
            for node in ("mps-1", "mig-1"):
                name = f"partitioner/{node}.json"
                texts[name] = await settled(partial(shown, node), name, "wanted-slices")
            texts["partitioner/events.txt"] = await settled(events, "partitioner/events.txt", "SliceNotMade")
            texts["partitioner/metrics.txt"] = await page(probes)
            texts["partitioner/healthz.txt"] = "{} {}".format(*await answer(probes, "/healthz"))
            (lease,) = server.store.find(LEASES, "gpushare-partitioner")
            lease["metadata"] = {key: value for key, value in lease["metadata"].items() if key not in _ADDED}
            texts["partitioner/lease.json"] = re.sub(r'(holderIdentity": )".*"', r'\1"<identity>"', as_json(lease))
            assert await daemon.stop() == 0
            texts["partitioner/log.txt"] = lines(daemon.log, SHOWN)
            assert undocumented(daemon.log) == []
    return {name: masked(text, folder=folder) for name, text in texts.items()}
