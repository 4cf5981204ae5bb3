"""`gpushare simulate` on a live cluster."""

import json
from pathlib import Path

from gpushare_plugin.testing.cluster import ApiServer
from tests.process.daemon import gpushare
from tests.skin.cluster import create


async def test_a_live_cluster_is_simulated_with_changes(tmp_path: Path) -> None:
    """Nodes and pods are read, and nothing is written; generated nodes replace those of the cluster, and only those."""
    async with ApiServer() as server:
        create(server)
        options = ("--cluster", "--policies", "packing", "--seeds", "1", "--jobs", "1", "-o", "json")
        environment = {"KUBECONFIG": str(server.kubeconfig(tmp_path / "config"))}
        live, generated = [
            await gpushare("simulate", *options, *more, environment=environment)
            for more in (
                ("--remove-nodes", "whole", "--add-nodes", "2xA100,gpus=8,cpu=96,memory=768Gi"),
                ("--generate-nodes", "3xA100,gpus=8,cpu=96,memory=768Gi"),
            )
        ]
        assert {asked.verb for asked in server.asked} == {"list"}
    assert (live.status, live.errors, generated.status) == (0, "", 0)
    report = json.loads(live.output)
    assert report["source"] == "Nodes and pods from the live cluster"
    assert report["changes"] == [
        "node whole removed",
        "2 nodes added, with 8 GPUs A100, 96 cores and 768 GiB each",
    ]
    assert (report["nodes"], report["gpus"]) == (7, 2 + 2 + 2 + 2 + 2 + 16)
    again = json.loads(generated.output)
    assert again["source"] == "Nodes from the command line, pods from the live cluster"
    assert (again["nodes"], again["gpus"], again["pods"]) == (3, 24, report["pods"])
