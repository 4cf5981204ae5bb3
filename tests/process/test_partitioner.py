"""`gpushare partition` as the chart runs it, against an API server that allows what the chart's rules allow."""

from pathlib import Path
from typing import Any

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer, granted
from gpushare_plugin.testing.ports import claim_port
from tests.chart.rendering import objects
from tests.process.daemon import process
from tests.unit.partitioner.partitioners import EVENTS, create_node, create_pod, messages, slices, uuid
from tests.waiting import until

ON: dict[str, Any] = {"partitioning": {"enabled": True}, "mps": {"enabled": True}}


def count(server: ApiServer, pod: str) -> int:
    """Return how often there was an Event of a pod; one that comes again is counted in the first."""
    return sum(each["count"] for each in server.store.find(EVENTS) if each["involvedObject"]["name"] == pod)


async def test_every_right_is_used_and_none_is_missing(tmp_path: Path) -> None:
    """Making slices for pods uses each rule of the chart, and needs no other."""
    (deployment,) = (each for each in objects(ON) if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (command,) = container["args"]
    fields = {
        "metadata.name": "one",
        "metadata.namespace": "kube-system",
        "spec.nodeName": "n0",
    }
    environment = {
        each["name"]: each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
    }
    environment["PROBE_ADDRESS"] = f"127.0.0.1:{claim_port()}"
    async with ApiServer(granted(objects(ON), "gpushare-partitioner")) as server:
        create_node(server, "n0", 40)
        arguments = (command, "--kubeconfig", server.kubeconfig(tmp_path / "kubeconfig"))
        async with process(*arguments, environment=environment) as daemon:
            create_pod(server, "p", "10gb")
            await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 1}})
            await until(lambda: messages(server, "p"))
            create_pod(server, "large", "40gb", priority=-1)  # served last, also if it was created in the same second
            await until(lambda: len(messages(server, "large")) == 1)
            for cordoned, events in ((True, 2), (None, 3)):
                server.store.update(NODES, "n0", {("spec", "unschedulable"): cordoned})
                await until(lambda: count(server, "large") == events)  # noqa: B023 - awaited here
            assert await daemon.stop() == 0
            assert daemon.events("api_request_failed") == []
        assert 403 not in {each.status for each in server.asked}
        assert server.used == server.permissions
