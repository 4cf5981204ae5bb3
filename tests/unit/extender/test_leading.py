"""Several extenders: one answers, the others say why not and follow the cluster, to answer in its place at once."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from gpushare_plugin.extender.binder import BinderTiming
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.lease import LeaseTiming
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Asked, Refusal
from gpushare_plugin.testing.ports import claim_port
from tests.unit.extender.extenders import (
    LEASE,
    LEASES,
    PODS,
    Asking,
    Extending,
    a_pod,
    annotations,
    assert_none_promised_twice,
    extender,
    node,
    pod,
    promised,
)
from tests.waiting import until

SHORT = LeaseTiming(duration=2, deadline=1.0, retry=0.05)


def lists(asked: Sequence[Asked]) -> dict[str, int]:
    """Return how many lists of Nodes and of Pods there are among requests; those of the pods of one node are some."""
    return dict(Counter(each.resource for each in asked if each.verb == "list" and each.resource != "leases"))


async def test_an_extender_without_the_lease_answers_errors(
    server: ApiServer, asking: Extending, tmp_path: Path
) -> None:
    """The answers have the reason and are never half an answer; the extender takes over when it can."""
    first, second = a_pod(server, "first", 16), a_pod(server, "second", 16)
    assert await asking.bind(first, "n0") == ""
    async with extender(server, tmp_path, wait=False) as other:
        assert "does not lead" in (await other.filter(second, "n0"))["Error"]
        assert "does not lead" in await other.bind(second, "n0")
        for path in ("/prioritize", "/preempt"):
            status, text = await other.post(path, {"Pod": second, "NodeNames": ["n0"]})
            assert (status, "does not lead" in text) == (503, True)
        assert (await other.get("/inspect"))[0] == 503
        # Pods that ask for nothing of ours need no leader.
        assert await other.fits(a_pod(server, "plain", {}), "n0", "n1") == ["n0", "n1"]
        used = await asking.used()
        await asking.end()
        await other.ready()
        assert await other.used() == used
        assert await other.bind(second, "n0") == ""
        assert_none_promised_twice(server)


async def test_an_extender_that_stands_by_has_listed_everything(
    server: ApiServer, asking: Extending, tmp_path: Path
) -> None:
    """A new leader answers from what it has followed before, without a list after the end of the old one.

    It is ready to take over only once it has listed everything, and says what is missing.
    """
    probes = claim_port()
    server.refusals.append(Refusal(500, verb="list", resource="pods"))
    service = {"service": "extender", "pod": ObjectIdentity("kube-system", "other", "uid"), "pod_address": "192.0.2.1"}
    options = {**service, "probe_address": f"127.0.0.1:{probes}"}
    async with extender(server, tmp_path, wait=False, **options) as other:
        waits = (503, "this extender stands by, and has not listed all pods yet\n")
        await until(lambda: _is_answered(other, probes, waits))
        server.refusals.clear()
        await until(lambda: _is_answered(other, probes, (200, "ok\n")))
        assert await asking.bind(a_pod(server, "first", 16), "n0") == ""
        second = a_pod(server, "second", 10)
        before = len(server.asked)
        await asking.end()
        await other.ready()
        await other.comes_not_to_fit(a_pod(server, "large", 17), "n0")
        assert lists(server.asked[before:]) == {}
        # The first Binding compares what is known of its node with what the API server has there, and that is all.
        assert await other.bind(second, "n1") == ""
        await other.agrees()
        for name in ("n0", "n1", "n2"):
            assert await other.bind(a_pod(server, f"on-{name}", 6), name) == ""
        assert lists(server.asked[before:]) == {"pods": 1}
        assert_none_promised_twice(server)


@pytest.mark.parametrize("status", [0, 200, 500])
async def test_a_new_leader_promises_nothing_before_it_knows_all_bindings(
    server: ApiServer, asking: Extending, tmp_path: Path, status: int
) -> None:
    """A watch that is behind has not shown every Binding of the old leader on the node yet.

    It does not know either what it cannot read.
    """
    server.store.create(NODES, node("small", 16))
    await asking.knows("small")
    timing = BinderTiming(binding=0.5)
    async with extender(server, tmp_path, wait=False, binder_timing=timing) as other:
        await until(lambda: len(server.watches.open) == 2 * len({"nodes", "pods", "leases", "poddisruptionbudgets"}))
        server.watches.delay = 600
        first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
        assert await asking.bind(first, "small") == ""
        await asking.end()
        await other.ready()
        if status != 200:
            server.refusals.append(Refusal(status, verb="list", resource="pods", times=1))
        assert await other.fits(second, "small") == ["small"]
        assert await other.bind(second, "small") != ""
        server.watches.delay = 0
        await server.watches.cut()
        await other.comes_not_to_fit(second, "small")
        assert await other.bind(second, "small") != ""
        assert_none_promised_twice(server)


async def test_a_binding_is_not_carried_out_after_a_change_of_leader(server: ApiServer, tmp_path: Path) -> None:
    """What the API server has not done when the time of a Binding is over, it never does: another one may lead then."""
    server.store.create(NODES, node("small", 16))
    carried_out = server.delayed["pods/binding"] = asyncio.Event()
    first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
    async with (
        extender(server, tmp_path, binder_timing=BinderTiming(binding=0.5)) as leader,
        extender(server, tmp_path, wait=False) as other,
    ):
        assert await leader.bind(first, "small") != ""
        await leader.end()
        await other.ready()
        binding = asyncio.create_task(other.bind(second, "small"))
        await until(lambda: [each.status for each in server.asked if each.resource == "pods/binding"] == [504])
        carried_out.set()
        assert await binding == ""
    assert not annotations(server, "first")
    assert_none_promised_twice(server)


async def test_a_promise_outlasts_the_term(server: ApiServer, tmp_path: Path) -> None:
    """Units of a pod of which nobody knows whether it was bound stay promised, also when this one leads again."""
    server.store.create(NODES, node("small", 16))
    async with extender(server, tmp_path, lease_timing=SHORT) as asking:
        server.refusals.append(Refusal(0, verb="create", times=1, resource="pods/binding"))
        first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
        assert "it is not known whether" in await asking.bind(first, "small")
        server.refusals.append(Refusal(500, resource="leases"))

        async def refuses() -> bool:
            return "does not lead" in str(await asking.filter(second, "small"))

        await until(refuses)
        server.refusals.clear()
        await asking.ready()
        assert await asking.fits(second, "small") == []
        assert await asking.bind(first, "small") == ""


async def _is_answered(asking: Asking, port: int, expected: tuple[int, str]) -> bool:
    """Return whether readiness is answered like this."""
    return await _page(asking, port, "/readyz") == expected


async def test_a_leader_reports_once_a_term_that_all_is_listed(server: ApiServer, tmp_path: Path) -> None:
    """The report comes before the first answer: then the process can set aside what was read."""
    listed: list[str] = []
    server.refusals.append(Refusal(500, verb="list", resource="pods"))
    async with extender(server, tmp_path, wait=False, listed=lambda: listed.append("all")) as asking:
        await until(lambda: sum(each.verb == "list" and each.resource == "pods" for each in server.asked) > 1)
        assert listed == []
        server.refusals.clear()
        await asking.ready()
        assert listed == ["all"]


async def test_a_leader_that_cannot_renew_its_lease_does_not_name_itself(server: ApiServer, tmp_path: Path) -> None:
    """The Lease still has its name, but the reason is that the API server does not renew it."""
    async with extender(server, tmp_path, lease_timing=SHORT) as asking:
        server.refusals.append(Refusal(500, resource="leases"))

        async def told() -> bool:
            _, text = await asking.get("/inspect")
            return "does not lead: it could not renew its Lease in time; its log says why" in text

        await until(told)
        server.refusals.clear()


async def test_a_restarted_extender_knows_earlier_promises_from_the_pods(server: ApiServer, tmp_path: Path) -> None:
    """A restart rebuilds everything."""
    async with extender(server, tmp_path) as asking:
        for number in range(7):
            assert await asking.bind(a_pod(server, f"p{number}", 5), f"n{number % 3}") == ""
        used = await asking.used()
    async with extender(server, tmp_path) as again:
        assert await again.used() == used == promised(server)


async def test_an_extender_that_ends_waits_for_its_bindings(
    server: ApiServer, asking: Extending, tmp_path: Path
) -> None:
    """An extender that ends leaves the Lease to another one only when its Bindings have ended."""
    server.late["pods/binding"] = 1.0
    first, second = a_pod(server, "first", 16), a_pod(server, "second", 16)
    server.store.create(NODES, node("small", 16))
    await asking.knows("small")
    async with extender(server, tmp_path, wait=False) as other:
        binding = asyncio.create_task(asking.bind(first, "small"))
        await until(lambda: promised(server))
        ending = asyncio.create_task(asking.end())
        holder = server.store.find(LEASES, LEASE)[0]["spec"]["holderIdentity"]
        server.late.clear()
        await ending
        await asyncio.gather(binding, return_exceptions=True)
        released = [index for index, each in enumerate(server.asked) if each.resource == "leases"][-1]
        bound = next(index for index, each in enumerate(server.asked) if each.resource == "pods/binding")
        assert bound < released
        await other.ready()
        assert server.store.find(LEASES, LEASE)[0]["spec"]["holderIdentity"] != holder
        assert await other.fits(second, "small", "n0") == ["n0"]
    assert_none_promised_twice(server)


async def test_a_leader_that_loses_the_lease_stops(server: ApiServer, tmp_path: Path) -> None:
    """Without a renewal in time it answers no more; once it leads again, it knows what happened meanwhile at once."""
    async with extender(server, tmp_path, lease_timing=SHORT) as asking:
        server.refusals.append(Refusal(500, resource="leases"))
        stopped = a_pod(server, "stopped", 5)

        async def refuses() -> bool:
            return "does not lead" in str(await asking.filter(stopped, "n0"))

        await until(refuses)
        assert "does not lead" in await asking.bind(stopped, "n0")
        # Another one led meanwhile.
        other = pod("other", 16)
        other["spec"]["nodeName"] = "n0"
        server.store.create(PODS, other)
        asked = len(server.asked)
        server.refusals.clear()

        async def leads_again() -> bool:
            return (await asking.filter(stopped, "n0", "n1")).get("NodeNames") == ["n1"]

        await until(leads_again)
        assert lists(server.asked[asked:]) == {}


@pytest.mark.parametrize("year", [1970, 2026, 2100])
async def test_wrong_clocks_do_not_end_a_lease(server: ApiServer, tmp_path: Path, year: int) -> None:
    """The time that another extender wrote means nothing: its Lease lasts from when it was first seen."""
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 1, "renewTime": f"{year}-01-01T00:00:00.000000Z"}
    server.store.create(LEASES, {"metadata": {"name": LEASE}, "spec": spec})
    began = time.monotonic()
    async with extender(server, tmp_path):
        assert time.monotonic() - began >= 1.0


async def test_an_extender_waits_for_whole_lists_of_nodes_and_pods(server: ApiServer, tmp_path: Path) -> None:
    """Before Nodes and Pods are all listed there is no answer, and readiness says what is missing."""
    server.refusals.append(Refusal(500, verb="list", resource="pods"))
    probes = claim_port()
    async with extender(server, tmp_path, wait=False, probe_address=f"127.0.0.1:{probes}") as asking:
        first = a_pod(server, "first", 5)

        async def listed_nodes() -> bool:
            ready = await _page(asking, probes, "/readyz")
            return ready == (503, "this extender leads, and has not listed all pods yet\n")

        await until(listed_nodes)
        assert "has not listed all pods yet" in (await asking.filter(first, "n0"))["Error"]
        assert await _page(asking, probes, "/healthz") == (200, "ok\n")
        server.refusals.clear()
        await asking.ready()
        assert await _page(asking, probes, "/readyz") == (200, "ok\n")


async def _page(asking: Asking, port: int, path: str) -> tuple[int, str] | None:
    """Return what is answered, None while nobody listens, or where a connection ended in the middle."""
    try:
        async with asking.http.get(f"http://127.0.0.1:{port}{path}") as response:
            return response.status, await response.text()
    except aiohttp.ClientConnectionError:
        return None


async def test_broken_objects_stop_nothing(server: ApiServer, tmp_path: Path) -> None:
    """Nodes and pods as no API server has them are left out, and the others are placed."""
    server.store.create(NODES, {"metadata": {"name": "odd"}, "status": {"capacity": [1]}})
    server.store.create(NODES, {"metadata": {"name": "odder", "annotations": {"gpushare/gpus": "{"}}})
    server.store.create(PODS, {"metadata": {"name": "odd"}, "spec": {"containers": "none"}})
    async with extender(server, tmp_path) as asking:
        first = a_pod(server, "first", 5)
        server.store.create(PODS, {"metadata": {"name": "odder", "ownerReferences": 1}, "spec": {"priority": "x"}})
        assert await asking.fits(first, "odd", "odder", "n0") == ["n0"]
        assert await asking.bind(first, "n0") == ""
        await asking.knows("n2")
        assert json.loads((await asking.get("/inspect/n0"))[1])["nodes"][0]["usedGPU"] == 5


async def test_metrics_count_what_was_answered(server: ApiServer, tmp_path: Path) -> None:
    """Requests are counted by verb and result, whatever the form of a refusal; promises end with the watch."""
    probes = claim_port()
    async with extender(server, tmp_path, probe_address=f"127.0.0.1:{probes}") as asking:
        first, second = a_pod(server, "first", 16), a_pod(server, "second", 17)
        assert await asking.fits(first, "n0") == ["n0"]
        assert await asking.bind(first, "n0") == ""
        assert await asking.bind(second, "n0") != ""
        assert await asking.fits(second, "n0") == []
        assert (await asking.post("/filter", b"{"))[0] == 400
        await asking.agrees()
        text: dict[str, str] = {}

        async def settled() -> bool:
            _, page = await _page(asking, probes, "/metrics") or (0, "")
            lines = (line.rpartition(" ") for line in page.splitlines() if line.startswith("gpushare_"))
            text.update({name: value for name, _, value in lines})
            return text.get("gpushare_extender_promises") == "0.0"

        await until(settled)
        assert {key: value for key, value in text.items() if "seconds" not in key and "api_errors" not in key} == {
            "gpushare_extender_leads": "1.0",
            "gpushare_extender_ready": "1.0",
            "gpushare_extender_nodes": "3.0",
            "gpushare_extender_promises": "0.0",
            'gpushare_extender_requests_total{result="done",verb="filter"}': "2.0",
            'gpushare_extender_requests_total{result="refused",verb="filter"}': "1.0",
            'gpushare_extender_requests_total{result="done",verb="bind"}': "1.0",
            'gpushare_extender_requests_total{result="refused",verb="bind"}': "1.0",
            'gpushare_extender_refusals_total{reason="no_room"}': "0.0",
            'gpushare_extender_refusals_total{reason="unfit"}': "1.0",
            'gpushare_extender_refusals_total{reason="not_leading"}': "0.0",
            'gpushare_extender_refusals_total{reason="bind_failed"}': "1.0",
        }
        # A request that is no JSON was answered with 400; what a bind comes to is in its answer.
        counts = {name: value for name, value in text.items() if "_duration_seconds_count" in name}
        assert counts == {
            'gpushare_extender_request_duration_seconds_count{code="200",verb="filter"}': "2.0",
            'gpushare_extender_request_duration_seconds_count{code="400",verb="filter"}': "1.0",
            'gpushare_extender_request_duration_seconds_count{code="200",verb="bind"}': "2.0",
        }
        assert 'gpushare_extender_request_duration_seconds_bucket{code="200",le="5.0",verb="bind"}' in text
        assert float(text["gpushare_extender_cache_age_seconds"]) >= 0
        assert text['gpushare_extender_api_errors_total{reason="server"}'] == "0.0"


async def test_the_lease_names_the_default_policy(server: ApiServer, tmp_path: Path) -> None:
    """Who leads writes its own, also where another one had the Lease before."""
    for policy in ("spread", "binpack"):
        async with extender(server, tmp_path, policy=policy):
            (lease,) = server.store.find(LEASES, LEASE)
            assert lease["metadata"]["annotations"]["gpushare/placement"] == policy
