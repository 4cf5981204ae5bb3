"""GPUs that are cordoned on nodes of Aliyun's plugin get no promises."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer, Permission
from tests.unit.extender.extenders import Asking, a_pod, extender, node, plain_node

CONFIGMAPS = "/api/v1/namespaces/kube-system/configmaps"


def cordon(server: ApiServer, where: str, gpus: str) -> None:
    """Create the ConfigMap of a node as people do."""
    server.store.create(CONFIGMAPS, {"metadata": {"name": f"unhealthy-gpu-{where}"}, "data": {"gpus": gpus}})


@pytest.fixture
async def server(server: ApiServer) -> ApiServer:
    """Return an API server with two nodes of Aliyun's plugin as well, of two GPUs of 16 units."""
    for name in ("plain-0", "plain-1"):
        server.store.create(NODES, plain_node(name, 32, 2))
    return server


async def fill(asking: Asking, server: ApiServer, where: str) -> list[str]:
    """Bind two pods that need a whole GPU each; return why each was not bound."""
    pods = [a_pod(server, f"{where}-{number}", 16) for number in range(2)]
    return [await asking.bind(each, where) for each in pods]


@pytest.mark.parametrize("nodes", [("*",), ("plain-0", "n0")])
async def test_cordoned_gpus_get_no_promises(server: ApiServer, tmp_path: Path, nodes: tuple[str, ...]) -> None:
    """Before the first answer their ConfigMaps are read, and then each change counts; ours read theirs themselves."""
    for where in ("plain-0", "n0"):
        cordon(server, where, "1, 7 x")
    async with extender(server, tmp_path, cordon_nodes=nodes) as asking:
        reason = (await asking.bind(a_pod(server, "large", 17), "plain-0")).replace("\n", " ")
        assert "cordoned by ConfigMap kube-system/unhealthy-gpu-plain-0" in reason
        first, second = await fill(asking, server, "plain-0")
        assert (first, "GPU 1" in second) == ("", True)
        assert await fill(asking, server, "n0") == ["", ""]

        waiting = a_pod(server, "waiting", 16)
        server.store.patch(CONFIGMAPS, "unhealthy-gpu-plain-0", {"data": {"gpus": "0"}})
        await asking.comes_to_fit(waiting, "plain-0")
        server.store.patch(CONFIGMAPS, "unhealthy-gpu-plain-0", {"data": {"gpus": "0,1"}})
        await asking.comes_not_to_fit(waiting, "plain-0")
        server.store.delete(CONFIGMAPS, "unhealthy-gpu-plain-0")
        await asking.comes_to_fit(waiting, "plain-0")
        # The node is replaced by one of ours and comes back.
        cordon(server, "plain-1", "0,1")
        if nodes == ("*",):
            await asking.comes_not_to_fit(waiting, "plain-1")
            server.store.replace(NODES, node("plain-1", 16))
            await asking.comes_to_fit(waiting, "plain-1")
            server.store.replace(NODES, plain_node("plain-1", 32, 2))
            await asking.comes_not_to_fit(waiting, "plain-1")


@pytest.mark.parametrize("annotation", [{"gpushare/unhealthy-gpus": "0"}, {}])
async def test_cordons_by_annotation_need_no_right(
    server: ApiServer, tmp_path: Path, annotation: Mapping[str, str]
) -> None:
    """By default no ConfigMap is read, and the annotation cordons GPUs nevertheless."""
    cordon(server, "plain-0", "0,1")
    server.store.patch(NODES, "plain-0", {"metadata": {"annotations": dict(annotation)}})
    async with extender(server, tmp_path) as asking:
        errors = await fill(asking, server, "plain-0")
        assert [not error for error in errors] == [True, not annotation]
        assert not annotation or "cordoned by annotation gpushare/unhealthy-gpus" in errors[1]
    assert "configmaps" not in {each.resource for each in server.asked}


async def test_an_extender_that_may_not_read_configmaps_places_pods_nevertheless(
    server: ApiServer, tmp_path: Path
) -> None:
    """An extender that may not read a ConfigMap says so, and answers."""
    everything = [
        Permission(verb, resource, group=group)
        for group, resource in (("", "nodes"), ("", "pods"), ("", "pods/binding"), ("coordination.k8s.io", "leases"))
        for verb in ("list", "watch", "get", "create", "patch")
    ]
    one = [Permission(verb, "configmaps", "kube-system", "unhealthy-gpu-plain-0") for verb in ("list", "watch")]
    server.permissions = everything + one
    for where in ("plain-0", "plain-1"):
        cordon(server, where, "1")
    async with extender(server, tmp_path, cordon_nodes=("plain-0", "plain-1")) as asking:
        assert [not error for error in await fill(asking, server, "plain-0")] == [True, False]
        assert await fill(asking, server, "plain-1") == ["", ""]
