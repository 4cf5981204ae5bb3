"""The HTTP server: its paths, TLS, and requests that no kube-scheduler sends."""

import asyncio
import json
import ssl
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpushare_plugin import __version__
from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.extender.bodies import LARGEST_REQUEST
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION
from gpushare_plugin.observe.http.certificates import Certificates
from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.extender.extenders import MEMORY, Asking, a_pod, create, extender, pod
from tests.unit.kube.certificates import Authority
from tests.waiting import until

POSTED = ("filter", "prioritize", "bind", "preempt")


async def test_aliyuns_paths_are_served(server: ApiServer, asking: Asking) -> None:
    """kube-scheduler and tools that are configured for Aliyun's extender find the same below its prefix."""
    first = a_pod(server, "first", 5)
    asked = {"Pod": first, "NodeNames": ["n0", "none"]}
    for verb in ("filter", "prioritize"):
        assert await asking.post(f"/gpushare-scheduler/{verb}", asked) == await asking.post(f"/{verb}", asked)
    metadata = first["metadata"]
    body = {"PodName": "first", "PodNamespace": "team", "PodUID": metadata["uid"], "Node": "n0"}
    assert await asking.post("/gpushare-scheduler/bind", body) == {"Error": ""}
    assert await asking.get("/version") == (200, f"{__version__}\n")


async def test_inspect_is_as_aliyuns_tools_read_it(server: ApiServer, asking: Asking) -> None:
    """`/inspect` and `/inspect/<node>` have the JSON of Aliyun's extender, with the pods of each GPU."""
    assert await asking.bind(a_pod(server, "first", 5), "n0") == ""
    status, text = await asking.get("/gpushare-scheduler/inspect/n0")
    used = [{"name": "first", "namespace": "team", "usedGPU": 5}]
    devices = [
        {"id": 0, "totalGPU": 16, "usedGPU": 5, "pods": used},
        {"id": 1, "totalGPU": 16, "usedGPU": 0, "pods": []},
    ]
    node = {"name": "n0", "totalGPU": 32, "usedGPU": 5, "devs": devices}
    assert (status, json.loads(text)) == (200, {"nodes": [node]})
    status, text = await asking.get("/gpushare-scheduler/inspect")
    assert [each["name"] for each in json.loads(text)["nodes"]] == ["n0", "n1", "n2"]
    assert await asking.get("/gpushare-scheduler/inspect/none") == (404, "node none not found\n")


BROKEN = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"7",
    b"\xff\xfe",
    b'{"Pod":{}}' * 2,
    b'{"Pod":7,"NodeNames":["a"],"PodName":7}',
    b'{"Pod":{"metadata":{"name":"\xff"}},"PodName":"\xff"}',
    b'{"other":' + b"[" * 100_000,
    b'{"Pod":{"spec":{"containers":{}}},"NodeNames":{}}',
    b'{"Pod":{},"Nodes":{"items":[7]},"NodeNameToVictims":7}',
    b'{"Pod":{},"NodeNames":[null],"NodeNameToMetaVictims":[]}',
]


@pytest.mark.parametrize("body", BROKEN)
async def test_broken_requests_are_refused(asking: Asking, body: bytes) -> None:
    """What is not the protocol is answered with 400 and a sentence, and nothing else suffers."""
    for verb in POSTED:
        answer = await asking.post(f"/{verb}", body)
        if isinstance(answer, tuple):
            status, text = answer
            assert status == 400, (verb, body, text)
            assert text.startswith("the request is not"), text
            assert text.endswith("\n")
        else:
            # Such as objects of nodes, which nobody looks into for a pod that asks for nothing.
            assert b'"Pod":{}' in body
    assert (await asking.get("/version"))[0] == 200


async def test_unknown_paths_and_wrong_methods_are_refused(asking: Asking) -> None:
    """A path that does not exist is 404, a wrong method 405."""
    assert (await asking.get("/none"))[0] == 404
    assert (await asking.get("/filter"))[0] == 405
    assert (await asking.post("/inspect", {}))[0] == 405


async def test_half_a_request_holds_up_nobody(server: ApiServer, asking: Asking) -> None:
    """Clients that stop in the middle, of the head or the body, leave all others as they were."""
    head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    connections = []
    for part in (b"POST", head, head + b"\r\n", head + b'\r\n{"Pod":'):
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", asking.port)
            writer.write(part)
            connections.append(writer)
    assert await asking.fits(a_pod(server, "first", 5), "n0") == ["n0"]
    for writer in connections:
        writer.close()
    assert await asking.fits(a_pod(server, "second", 5), "n0") == ["n0"]


async def test_huge_requests_are_answered(server: ApiServer, asking: Asking) -> None:
    """The most whole Nodes that a kube-scheduler sends by default are taken; those that fit come back as they came."""
    first = a_pod(server, "first", 5)
    images = [{"names": ["x" * 100, "x" * 72], "sizeBytes": 123_456_789}] * 95
    filling = {"images": images, "quote": '"\\é', "number": 1.0}
    names = [f"n{number}" for number in range(781)]
    nodes = [{"metadata": {"name": name}, "status": filling} for name in names]
    assert 0.9 * LARGEST_REQUEST < len(json.dumps(nodes)) < LARGEST_REQUEST
    answer = await asking.post("/filter", {"Pod": first, "Nodes": {"items": nodes}})
    assert answer["Nodes"]["items"] == nodes[:3]
    assert len(answer["FailedAndUnresolvableNodes"]) == 778


async def test_whole_nodes_are_answered_with_whole_nodes(server: ApiServer, asking: Asking) -> None:
    """Without `nodeCacheCapable`, filter and prioritize take Nodes and answer with Nodes, for every pod."""
    nodes = [{"metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"x": 1}} for name in ("n0", "n1", "none")]
    for asked, fitting in ((a_pod(server, "first", 5), nodes[:2]), (a_pod(server, "plain", {"cpu": "1"}), nodes)):
        answer = await asking.post("/filter", {"Pod": asked, "Nodes": {"items": nodes}, "NodeNames": None})
        assert answer["Nodes"] == {"items": fitting}
        assert "NodeNames" not in answer
        answer = await asking.post("/prioritize", {"Pod": asked, "Nodes": {"items": nodes}})
        assert [each["Host"] for each in answer] == ["n0", "n1", "none"]


async def test_scores_are_those_of_the_moment_they_are_asked_for(server: ApiServer, asking: Asking) -> None:
    """A node that changed after `filter` has the score of its new state, as `prioritize` without `filter` gives it."""
    first, names = a_pod(server, "first", 4), ("n0", "n1")
    assert await asking.fits(first, *names) == list(names)
    assert await asking.bind(a_pod(server, "other", 8), "n1") == ""
    scores = await asking.scores(first, *names)
    assert scores["n0"] < scores["n1"]
    unlike_the_first = a_pod(server, "second", 4, annotations={"gpushare/placement": "binpack"})
    assert await asking.scores(unlike_the_first, *names) == scores


async def test_pods_that_ask_for_nothing_of_ours_pass(server: ApiServer, asking: Asking) -> None:
    """Where kube-scheduler sends every pod, others fit everywhere and have no score; it has to bind them itself."""
    plain = a_pod(server, "plain", {"cpu": "1", "example.com/other": "1"}, annotations={"theirs": "1"})
    assert await asking.fits(plain, "n0", "unknown") == ["n0", "unknown"]
    assert await asking.scores(plain, "n0", "unknown") == {"n0": 0, "unknown": 0}
    assert "name only these in managedResources" in await asking.bind(plain, "n0")


async def test_gpus_of_another_plugin_are_bound_without_a_promise(server: ApiServer, asking: Asking) -> None:
    """A resource of GPUs that no record names is another plugin's; kube-scheduler is made to ask about it, too."""
    theirs = a_pod(server, "theirs", {"nvidia.com/gpu": "1"}, annotations={"kept": "1"})
    assert await asking.bind(theirs, "n0") == ""
    (bound,) = server.store.find("/api/v1/namespaces/team/pods", "theirs")
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("n0", {"kept": "1"})


@pytest.mark.parametrize("known", [True, False])
async def test_clients_must_prove_who_they_are_if_an_authority_is_given(
    server: ApiServer, tmp_path: Path, *, known: bool
) -> None:
    """With a client authority, only those with a certificate of it are answered; HTTPS without one is for all."""
    ours, others = Authority("ours"), Authority("others")
    folders = [tmp_path / name for name in ("server", "client", "stranger")]
    for folder, authority in zip(folders, (ours, ours, others), strict=True):
        folder.mkdir()
        authority.server(folder)
    pem = folders[0] / "server.pem"
    certificates = Certificates(pem, pem, ours.write(tmp_path / "ca.pem"))
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(folders[1 if known else 2] / "server.pem")
    async with (
        extender(server, tmp_path, wait=False, certificates=certificates) as asking,
        aiohttp.ClientSession(f"https://127.0.0.1:{asking.port}", connector=aiohttp.TCPConnector(ssl=context)) as http,
    ):
        if known:
            async with http.get("/version") as response:
                assert (response.status, await response.text()) == (200, f"{__version__}\n")
        else:
            with pytest.raises(aiohttp.ClientError):
                await http.get("/version")


async def test_wrong_certificates_are_an_error_at_the_start(server: ApiServer, tmp_path: Path) -> None:
    """Files that are no certificates, and addresses that cannot be served at, end the start with a sentence."""
    (tmp_path / "bad.pem").write_text("no certificate")
    bad = tmp_path / "bad.pem"
    with pytest.raises(GpushareError, match=r"cannot use the certificates in .*bad.pem.*expected PEM files"):
        async with extender(server, tmp_path, certificates=Certificates(bad, bad)):
            pass
    async with extender(server, tmp_path) as asking:
        with pytest.raises(GpushareError, match="cannot serve HTTP at"):
            async with extender(server, tmp_path, address=f"127.0.0.1:{asking.port}"):
                pass


async def test_a_kubeconfig_that_is_missing_is_an_error_at_the_start(server: ApiServer, tmp_path: Path) -> None:
    """Waiting would not help: nothing makes a file appear that somebody misspelled."""
    with pytest.raises(GpushareError, match=r"none is not usable: there is no such file"):
        async with extender(server, tmp_path, kubeconfig=tmp_path / "none"):
            pass


async def test_two_resources_of_one_pod_are_counted_as_kubernetes_counts(server: ApiServer, asking: Asking) -> None:
    """A label for several GPUs and init containers are counted as Kubernetes and the node count them."""
    two = a_pod(server, "two", 8, labels={"aliyun.com/gpu-count": "2"})
    assert await asking.bind(two, "n0") == ""
    assert await asking.used() == {("n0", "GPU-n0-0"): 4, ("n0", "GPU-n0-1"): 4}
    odd = a_pod(server, "odd", 7, labels={"aliyun.com/gpu-count": "2"})
    reasons = (await asking.filter(odd, "n0"))["FailedAndUnresolvableNodes"]
    assert "cannot be split evenly over 2 GPUs" in reasons["n0"]
    init = pod("init", 2)
    init["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": {MEMORY: "16"}}}]
    assert await asking.bind(create(server, init), "n1") == ""
    assert await asking.used() == {("n0", "GPU-n0-0"): 4, ("n0", "GPU-n0-1"): 4, ("n1", "GPU-n1-0"): 16}


async def test_a_record_that_cannot_be_read_is_logged_once(
    server: ApiServer, tmp_path: Path, log: list[MutableMapping[str, Any]]
) -> None:
    """The log says so once for each change; no pod is placed there, and the answer says why."""
    server.store.patch(NODES, "n0", {"metadata": {"annotations": {GPUS_ANNOTATION: '{"version": 2}'}}})
    async with extender(server, tmp_path) as asking:
        asked = a_pod(server, "first", 5)
        answer = await asking.filter(asked, "n0", "n1")
        assert answer["NodeNames"] == ["n1"]
        assert "the record of the node cannot be read: annotation gpushare/gpus: version '2' found" in str(answer)
        server.store.patch(NODES, "n0", {"metadata": {"labels": {"another": "change"}}})
        server.store.patch(NODES, "n0", {"metadata": {"annotations": {GPUS_ANNOTATION: "nonsense"}}})
        await until(lambda: sum(each["event"] == "record_unreadable" for each in log) > 1)
    found = [each for each in log if each["event"] == "record_unreadable"]
    assert [each["node"] for each in found] == ["n0", "n0"]
    assert "version '2' found" in found[0]["reason"]
    assert "nonsense" not in found[0]["reason"]


async def test_a_quantity_that_makes_no_sense_fits_nowhere(asking: Asking) -> None:
    """No API server takes half a unit; `gpushare explain` says the same."""
    answer = await asking.filter(pod("half", {MEMORY: "0.5"}), "n0")
    assert "a whole number from 0 to" in answer["FailedAndUnresolvableNodes"]["n0"]
