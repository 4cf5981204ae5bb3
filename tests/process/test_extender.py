"""`gpushare extender` as the chart runs it, against an API server that allows what the chart's rules allow."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.annotations import PROMISE
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord, ResourceRecord, encode
from gpushare_plugin.testing.cluster import ApiServer, Permission, granted
from gpushare_plugin.testing.ports import claim_port
from tests.chart.rendering import objects
from tests.process.daemon import Daemon, comes_to_answer, process
from tests.waiting import until

OF_OPENSHIFT = Permission("create", "endpointslices/restricted", "kube-system", group="discovery.k8s.io")
"""The right that OpenShift asks for with each EndpointSlice that has addresses of pods; Kubernetes never does."""

ON: dict[str, Any] = {"scheduler": {"enabled": True, "cordonNodes": ["aliyun-1"]}}
OWN: dict[str, Any] = {"scheduler": {"enabled": True, "kubeScheduler": {"enabled": True}}}
PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"


def a_node() -> dict[str, Any]:
    """Return a Node with one GPU of 16 units."""
    gpu = GpuRecord(
        index=0,
        uuid="GPU-0",
        product="A",
        memory_mib=16384,
        mode="memory",
        resource="aliyun.com/gpu-mem",
        units=16,
        unit_mib=1024,
    )
    resource = ResourceRecord(name="aliyun.com/gpu-mem", kind="memory", policy="binpack")
    annotations = {GPUS_ANNOTATION: encode(NodeRecord(gpus=(gpu,), resources=(resource,)))}
    return {"metadata": {"name": "n0", "annotations": annotations}, "status": {"allocatable": {resource.name: "16"}}}


def a_pod(name: str) -> dict[str, Any]:
    """Return a pod that asks for five units."""
    containers = [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "5"}}}]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": containers}, "status": {}}


class Extender:
    """An extender in the pod of this name and address, configured by the chart."""

    def __init__(self, name: str, address: str, values: dict[str, Any] = ON) -> None:
        """Choose its ports."""
        self.port, self.probes = claim_port(), claim_port()
        fields = {"metadata.name": name, "metadata.uid": f"uid-of-{name}", "status.podIP": address}
        fields["metadata.namespace"] = "kube-system"
        deployments = (each for each in objects(values) if each["kind"] == "Deployment")
        (deployment,) = (each for each in deployments if each["metadata"]["name"] == "gpushare-extender")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (self.command,) = container["args"]
        self.environment = {
            each["name"]: each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }
        self.environment["LISTEN_ADDRESS"] = f"127.0.0.1:{self.port}"
        self.environment["PROBE_ADDRESS"] = f"127.0.0.1:{self.probes}"

    async def asked(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to kube-scheduler."""
        url = f"http://127.0.0.1:{self.port}{path}"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            return json.loads(await answer.read())

    async def becomes_ready(self) -> None:
        """Wait for what the kubelet sees."""
        await comes_to_answer(self.probes, "/readyz", (200, "ok\n"))


@contextlib.asynccontextmanager
async def running(
    name: str, address: str, kubeconfig: Path, values: dict[str, Any] = ON
) -> AsyncIterator[tuple[Extender, Daemon]]:
    """Run an extender as the chart does, until it is ready, and end it as Kubernetes does."""
    extender = Extender(name, address, values)
    arguments = (extender.command, "--kubeconfig", kubeconfig)
    async with process(*arguments, environment=extender.environment) as daemon:
        await extender.becomes_ready()
        yield extender, daemon
        if not daemon.gone:
            assert await daemon.stop() == 0


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server that knows the extender by the chart's rules, and has a Node."""
    async with ApiServer(granted(objects(ON), "gpushare-extender")) as started:
        started.store.create(NODES, a_node())
        yield started


def endpoints(server: ApiServer) -> list[str]:
    """Return where the Service leads."""
    slices = server.store.find(SLICES, "gpushare-extender")
    return [address for each in slices for endpoint in each["endpoints"] for address in endpoint["addresses"]]


async def test_every_right_is_used_and_none_is_missing(server: ApiServer, tmp_path: Path) -> None:
    """Placing pods by GPU uses each rule of the chart but the one of OpenShift, and needs no other."""
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    async with running("first", "192.0.2.1", kubeconfig) as (extender, daemon):
        await until(lambda: endpoints(server) == ["192.0.2.1"])
        pod = server.store.create(PODS, a_pod("p"))
        fits = await extender.asked("/filter", {"Pod": pod, "NodeNames": ["n0"]})
        assert fits["NodeNames"] == ["n0"]
        bind = {"PodName": "p", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "n0"}
        assert (await extender.asked("/bind", bind)).get("Error", "") == ""
        assert PROMISE in server.store.find(PODS, "p")[0]["metadata"]["annotations"]
        gone = await extender.asked("/bind", {**bind, "PodName": "gone", "PodUID": "gone"})
        assert "does not exist any more" in gone["Error"]
        told = await daemon.logged("clients_not_verified")
        assert daemon.events("api_request_failed") == []
        assert "any program that reaches its port" in told["reason"]
    assert 403 not in {each.status for each in server.asked}
    assert server.used | {OF_OPENSHIFT} == server.permissions


async def test_the_rights_suffice_to_make_certificates(tmp_path: Path) -> None:
    """Where the chart runs kube-scheduler, both Secrets are made, and written again, by the rights of the chart."""
    made = objects(OWN)
    async with ApiServer(granted(made, "gpushare-extender")) as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        for times in (1, 2):
            async with running("first", "192.0.2.1", kubeconfig, OWN) as (_, daemon):
                await daemon.logged("certificates_made", times=2)
                assert len(daemon.events("certificates_made")) == 2
                assert daemon.events("clients_not_verified") == []
            for found in server.store.find(SECRETS) if times == 1 else ():
                server.store.patch(SECRETS, found["metadata"]["name"], {"data": None})
        assert 403 not in {each.status for each in server.asked}
        of_secrets = {each for each in server.permissions or () if each.resource == "secrets"}
        assert of_secrets
        assert of_secrets <= set(server.used)


async def test_another_extender_takes_over(server: ApiServer, tmp_path: Path) -> None:
    """An extender that stands by is ready, so that drains go on; the Service leads to it once the first one ends."""
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    async with running("first", "192.0.2.1", kubeconfig) as (_, first):
        await until(lambda: endpoints(server) == ["192.0.2.1"])
        async with running("second", "192.0.2.2", kubeconfig) as (second, _):
            pod = server.store.create(PODS, a_pod("p"))
            answer = await second.asked("/filter", {"Pod": pod, "NodeNames": ["n0"]})
            assert "does not lead" in answer["Error"]
            assert endpoints(server) == ["192.0.2.1"]
            assert await first.stop() == 0
            await until(lambda: endpoints(server) == ["192.0.2.2"])
            assert (await second.asked("/filter", {"Pod": pod, "NodeNames": ["n0"]}))["NodeNames"] == ["n0"]
