"""Races on purpose: whatever comes late, twice or not at all, no GPU is promised twice, and nothing leaks.

What was promised is counted from the pods of the API server, not by the account of the extender.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.extender.binder import BinderTiming
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.extender.extenders import (
    ALLOCATION,
    MEMORY,
    PODS,
    PROMISE,
    Asking,
    Json,
    a_pod,
    annotations,
    assert_none_promised_twice,
    create,
    extender,
    gpu_of,
    node,
    pod,
    promised,
)
from tests.unit.ledger.objects import uuid
from tests.waiting import until

BINDING = "pods/binding"
IMPATIENT = BinderTiming(binding=20.0, between=0.05, abandoned=0.2, every=0.02)
"""A Binding without an answer counts as lost soon, and is asked for soon afterwards."""


def ending(body: Json) -> Json:
    """Return the change that has a pod end."""
    return {"status": {"phase": "Succeeded"}, "metadata": {"uid": body["metadata"]["uid"]}}


def watched(server: ApiServer, delay: float) -> None:
    """Have every watch be so many seconds late."""
    server.watches.delay = delay


async def test_the_last_slot_goes_to_one_of_two_pods(server: ApiServer, asking: Asking) -> None:
    """HAMi lets two concurrent filters take one slot; here a choice counts from the promise on, and one wins."""
    a, b = (a_pod(server, name, 16) for name in "ab")
    filler = [a_pod(server, f"f{number}", 16) for number in range(5)]
    for number, each in enumerate(filler):
        assert await asking.bind(each, f"n{number // 2}") == ""
    assert await asyncio.gather(*(asking.fits(each, "n0", "n1", "n2") for each in (a, b))) == [["n2"], ["n2"]]
    errors = await asyncio.gather(*(asking.bind(each, "n2") for each in (a, b)))
    assert sorted(map(bool, errors)) == [False, True]
    assert "needs 16 units of aliyun.com/gpu-mem on one GPU" in max(errors)
    assert_none_promised_twice(server)
    await asking.agrees()


async def test_many_pods_at_once_fill_a_node_exactly(server: ApiServer, asking: Asking) -> None:
    """Of any number of concurrent binds, as many succeed as there is room for."""
    server.late[BINDING] = 0.05
    pods = [a_pod(server, f"p{number}", 5) for number in range(20)]
    errors = await asyncio.gather(*(asking.bind(each, "n0") for each in pods))
    assert errors.count("") == 6
    assert_none_promised_twice(server)
    await asking.agrees()


async def test_a_promise_counts_while_the_binding_is_under_way(server: ApiServer, asking: Asking) -> None:
    """As long as the API server has not answered, the units are taken for all others."""
    server.store.create(NODES, node("small", 16))
    await asking.knows("small")
    server.late[BINDING] = 1.0
    first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
    binding = asyncio.create_task(asking.bind(first, "small"))
    await until(lambda: promised(server)["small", uuid(0, "small")] == 10)
    assert await asking.fits(second, "small") == []
    assert "6 free of 16" in await asking.bind(second, "small")
    assert await binding == ""


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_lost_answer_keeps_the_promise(server: ApiServer, tmp_path: Path, *, carried_out: bool) -> None:
    """Where nobody knows whether a pod was bound, its units stay promised; asked again, it is bound to the same."""
    server.store.create(NODES, node("small", 16))
    async with extender(server, tmp_path) as asking:
        watched(server, 600)
        server.refusals.append(Refusal(0, verb="create", times=1, resource=BINDING, carried_out=carried_out))
        first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
        assert "it is not known whether" in await asking.bind(first, "small")
        assert await asking.fits(second, "small", "n0") == ["n0"]
        # Meanwhile it fits nowhere else: it may be bound already.
        found = await asking.filter(first, "n0", "small")
        assert (found["NodeNames"], list(found["FailedAndUnresolvableNodes"])) == (["small"], ["n0"])
        assert await asking.scores(first, "n0", "small") == {"n0": 0, "small": 10}
        assert "bound to node small" in await asking.bind(first, "n0")
        assert await asking.bind(first, "small") == ""
        assert await asking.bind(second, "small") != ""
        assert promised(server) == {("small", uuid(0, "small")): 10}
        watched(server, 0)
        await server.watches.cut()
        await asking.agrees()


@pytest.mark.parametrize("carried_out", [True, False])
async def test_the_outcome_of_a_lost_binding_is_found_out(
    server: ApiServer, tmp_path: Path, *, carried_out: bool
) -> None:
    """A pod that nobody asks to bind again loses its promise where it was not bound, and only there."""
    server.store.create(NODES, node("small", 16))
    async with extender(server, tmp_path, binder_timing=IMPATIENT) as asking:
        watched(server, 600)
        server.refusals.append(Refusal(0, verb="create", times=1, resource=BINDING, carried_out=carried_out))
        first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
        assert await asking.bind(first, "small") != ""
        if carried_out:
            await until(lambda: sum(each.verb == "get" and each.resource == "pods" for each in server.asked) > 3)
            assert await asking.bind(second, "small") != ""
        else:
            await asking.comes_to_fit(second, "small")
            assert await asking.bind(second, "small") == ""
        assert_none_promised_twice(server)
        watched(server, 0)
        await server.watches.cut()
        await asking.agrees()


async def test_an_answer_that_comes_too_late_is_no_loss(server: ApiServer, tmp_path: Path) -> None:
    """kube-scheduler gets an error in time, tries again, and finds the pod bound, once and with one promise."""
    async with extender(server, tmp_path, binder_timing=BinderTiming(binding=0.3)) as asking:
        server.late[BINDING] = 1.0
        first = a_pod(server, "first", 10)
        # Where the machine is busy, the time may be over before the Binding was sent.
        while not annotations(server, "first"):
            assert "no answer of the API server within" in await asking.bind(first, "n0")
        server.late.clear()
        before = annotations(server, "first")
        assert await asking.bind(first, "n0") == ""
        assert annotations(server, "first") == before
        await asking.agrees()


@pytest.mark.parametrize("status", [429, 403, 500])
async def test_a_second_failure_does_not_undo_the_first(server: ApiServer, asking: Asking, status: int) -> None:
    """A Binding whose answer was lost stays promised, also where the server refuses the next one for the pod."""
    server.store.create(NODES, node("small", 16))
    await asking.knows("small")
    watched(server, 600)
    server.refusals.append(Refusal(0, verb="create", times=1, resource=BINDING, carried_out=False))
    first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
    assert await asking.bind(first, "small") != ""
    server.refusals.append(Refusal(status, verb="create", times=1, resource=BINDING))
    assert str(status) in await asking.bind(first, "small")
    assert await asking.fits(second, "small") == []
    assert await asking.bind(first, "small") == ""
    assert_none_promised_twice(server)


async def test_a_binding_that_fails_while_another_one_is_confirmed_ends_no_term(tmp_path: Path) -> None:
    """Pods are confirmed one after another; the promise to a later one can end while an earlier one is read."""
    async with ApiServer() as server:
        server.store.create(NODES, node("n0", 16, 16, 16))
        async with extender(server, tmp_path, binder_timing=IMPATIENT) as asking:
            watched(server, 600)
            first, second, third = (a_pod(server, name, 16) for name in ("first", "second", "third"))
            assert await asking.bind(first, "n0") == ""
            sent = server.delayed[BINDING] = asyncio.Event()
            server.refusals.append(Refusal(422, verb="create", times=1, resource=BINDING))
            binding = asyncio.create_task(asking.bind(second, "n0"))
            await until(lambda: any(each.resource == BINDING and each.name == "second" for each in server.begun))
            read = server.delayed["pods"] = asyncio.Event()
            begun = len(server.begun)
            await until(lambda: _reads_of_pods(server, begun))
            sent.set()
            assert "422" in await binding
            begun = len(server.begun)
            read.set()

            async def is_read_again() -> bool:
                assert await asking.fits(third, "n0") == ["n0"]
                return _reads_of_pods(server, begun)

            await until(is_read_again)


def _reads_of_pods(server: ApiServer, begun: int) -> bool:
    """Whether a pod was asked for by name since so many requests had begun."""
    return any((each.verb, each.resource) == ("get", "pods") for each in server.begun[begun:])


async def test_late_watches_make_no_room(server: ApiServer, asking: Asking) -> None:
    """With a watch seconds behind, new pods are read, and those that were bound still count."""
    watched(server, 2.0)
    pods = [a_pod(server, f"p{number}", 6) for number in range(10)]
    errors = [await asking.bind(each, "n0") for each in pods]
    assert errors.count("") == 4
    assert_none_promised_twice(server)
    await asking.agrees()
    assert promised(server) == {("n0", uuid(0, "n0")): 12, ("n0", uuid(1, "n0")): 12}


@pytest.mark.parametrize("delay", [0.0, 0.5])
async def test_a_pod_that_is_deleted_meanwhile_leaves_nothing(server: ApiServer, asking: Asking, delay: float) -> None:
    """A pod deleted between filter and bind, whether the watch showed that or not, is not bound and holds nothing."""
    watched(server, delay)
    gone = a_pod(server, "gone", 16)
    assert await asking.fits(gone, "n0") == ["n0"]
    server.store.delete(PODS, "gone")
    assert "does not exist any more" in await asking.bind(gone, "n0")
    await asking.agrees()
    # Another one of its name is another pod.
    again = a_pod(server, "gone", 16)
    assert await asking.bind(gone, "n0") != ""
    assert await asking.bind(again, "n0") == ""
    await asking.agrees()


async def test_a_pod_deleted_after_the_binding_is_forgotten(server: ApiServer, tmp_path: Path) -> None:
    """A pod that was bound and deleted before any watch or list showed it does not stay promised."""
    async with extender(server, tmp_path, binder_timing=IMPATIENT) as asking:
        watched(server, 600)
        short = a_pod(server, "short", 16)
        assert await asking.bind(short, "n0") == ""
        server.store.delete(PODS, "short")
        watched(server, 0)
        server.store.forget()
        await server.watches.cut()
        await asking.agrees()
        assert await asking.used() == {}


async def test_a_bound_pod_keeps_its_annotations(server: ApiServer, asking: Asking) -> None:
    """The original overwrites the annotation of a bound pod that it is asked to bind again; here nothing is written."""
    first = a_pod(server, "first", 10)
    assert await asking.bind(first, "n0") == ""
    before = server.store.find(PODS, "first")
    await asking.agrees()
    assert await asking.bind(first, "n0") == ""
    assert "already bound to node n0" in await asking.bind(first, "n1")
    assert server.store.find(PODS, "first") == before
    assert sum(each.resource == BINDING for each in server.asked) == 1


async def test_two_equal_requests_at_a_time_are_one_binding(server: ApiServer, asking: Asking) -> None:
    """kube-scheduler that asks again while the first request is under way gets the same answer."""
    server.late[BINDING] = 0.3
    first = a_pod(server, "first", 10)
    assert await asyncio.gather(*(asking.bind(first, "n0") for _ in range(5))) == [""] * 5
    assert sum(each.resource == BINDING for each in server.asked) == 1


async def test_a_pod_with_requests_for_two_nodes_is_bound_to_one(server: ApiServer, asking: Asking) -> None:
    """While a pod is being bound to one node, a request for another node is refused."""
    server.late[BINDING] = 0.3
    first = a_pod(server, "first", 10)
    errors = await asyncio.gather(asking.bind(first, "n0"), asking.bind(first, "n1"))
    assert sorted(map(bool, errors)) == [False, True]
    await asking.agrees()
    assert sum(promised(server).values()) == 10


async def test_a_bind_goes_on_after_its_client_has_hung_up(server: ApiServer, asking: Asking) -> None:
    """A client that hangs up leaves no half."""
    server.late[BINDING] = 0.3
    first = a_pod(server, "first", 10)
    task = asyncio.create_task(asking.bind(first, "n0"))
    await until(lambda: promised(server))
    task.cancel()
    assert await asking.bind(first, "n0") == ""
    await asking.agrees()


FORGED = [
    {ALLOCATION: json.dumps({"version": 1, "containers": {"main": {MEMORY: {uuid(1, "small"): 10}}}})},
    {PROMISE: json.dumps({"version": 1, "node": "small", "time": "", "containers": {"main": {MEMORY: {"x": 1}}}})},
    {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "10"},
    {"scheduler.framework.gpushare.allocation": '{"0":{"1":10}}'},
    {ALLOCATION: "{" * 1000, PROMISE: "[]", "ALIYUN_COM_GPU_MEM_IDX": "-1"},
]


@pytest.mark.parametrize("forged", FORGED)
async def test_forged_annotations_make_no_room(server: ApiServer, asking: Asking, forged: dict[str, str]) -> None:
    """What a pod says of its GPUs before it is bound is replaced, or counts for nothing."""
    server.store.create(NODES, node("small", 16, 16))
    await asking.knows("small")
    for number in range(3):
        liar = a_pod(server, f"liar{number}", 10, annotations=forged)
        assert bool(await asking.bind(liar, "small")) is (number == 2)
        assert_none_promised_twice(server)
        await asking.agrees()
    assert {gpu_of(server, f"liar{number}") for number in range(2)} == {uuid(0, "small"), uuid(1, "small")}


async def test_times_in_annotations_mean_nothing(server: ApiServer, tmp_path: Path) -> None:
    """An extender whose clock was years away has promised all the same."""
    for number, year in enumerate((1970, 2100)):
        promise = {
            "version": 1,
            "node": "n0",
            "time": f"{year}-01-01T00:00:00Z",
            "containers": {"main": {MEMORY: {uuid(number, "n0"): 16}}},
        }
        body = pod(f"p{number}", 16, annotations={PROMISE: json.dumps(promise)})
        body["spec"]["nodeName"] = "n0"
        create(server, body)
    async with extender(server, tmp_path) as asking:
        assert await asking.fits(a_pod(server, "new", 1), "n0", "n1") == ["n1"]
        await asking.agrees()


async def test_relist_storms_lose_nothing(server: ApiServer, asking: Asking) -> None:
    """A watch that ends with 410 again and again leads to lists, and to the same account.

    Also pods that were bound and deleted between two lists hold nothing in the end.
    """
    for number in range(18):
        assert await asking.bind(a_pod(server, f"p{number}", 5), f"n{number % 3}") == ""
        server.store.forget()
        await server.watches.cut()
        if number % 3 == 2:
            server.store.delete(PODS, f"p{number}")
        assert_none_promised_twice(server)
    await asking.agrees()
    assert sum(promised(server).values()) == 60


async def test_deletion_bursts_free_everything(server: ApiServer, asking: Asking) -> None:
    """The original crashes when many pods go at once; here all units are free afterwards."""
    server.store.create(NODES, node("large", *[100] * 4))
    await asking.knows("large")
    pods = [a_pod(server, f"p{number}", 1) for number in range(200)]
    assert set(await asyncio.gather(*(asking.bind(each, "large") for each in pods))) == {""}
    await asking.agrees()
    for number in range(200):
        server.store.delete(PODS, f"p{number}")
    await asking.agrees()
    assert await asking.used() == {}


async def test_units_are_free_when_containers_have_stopped(server: ApiServer, asking: Asking) -> None:
    """The original frees a pod that is being deleted at once; here its units count until its containers have ended."""
    first, second = a_pod(server, "first", 16), a_pod(server, "second", 16)
    server.store.create(NODES, node("small", 16))
    await asking.knows("small")
    assert await asking.bind(first, "small") == ""
    running: dict[str, Any] = {"name": "main", "state": {"running": {}}}
    server.store.patch(PODS, "first", {"status": {"phase": "Running", "containerStatuses": [running]}})
    server.store.patch(PODS, "first", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    server.store.patch(PODS, "first", {"status": {"phase": "Failed"}})
    later = pod("later", 16)
    later["spec"]["nodeName"] = "n0"
    create(server, later)
    # What came after it has been seen, so it has been seen, too.
    await asking.comes_not_to_fit(second, "n0")
    assert await asking.fits(second, "small") == []
    ended: dict[str, Any] = {"name": "main", "state": {"terminated": {}}}
    server.store.patch(PODS, "first", {"status": {"containerStatuses": [ended]}})
    await asking.comes_to_fit(second, "small")
    assert await asking.bind(second, "small") == ""


async def test_gpus_that_come_and_go_are_counted_at_once(server: ApiServer, asking: Asking) -> None:
    """The original never sees a node change; here a new GPU is used, and one that is gone is not."""
    server.store.create(NODES, node("small", 16))
    await asking.knows("small")
    first, second, third = (a_pod(server, name, 16) for name in ("first", "second", "third"))
    assert await asking.bind(first, "small") == ""
    assert await asking.fits(second, "small") == []
    server.store.patch(NODES, "small", node("small", 16, 16))
    await asking.comes_to_fit(second, "small")
    assert await asking.bind(second, "small") == ""
    assert_none_promised_twice(server)
    server.store.patch(NODES, "n0", node("n0", 8))
    await asking.comes_not_to_fit(third, "n0")
    assert await asking.bind(third, "n0") != ""
    server.store.delete(NODES, "n1")
    await asking.comes_not_to_fit(third, "n1")
    assert "not known" in await asking.bind(third, "n1")
    assert await asking.bind(third, "n2") == ""


async def test_a_pod_of_another_scheduler_counts_everywhere(server: ApiServer, asking: Asking) -> None:
    """A pod bound without a promise is on a GPU nobody knows: it counts against each until its node says where."""
    server.store.create(NODES, node("small", 16, 16))
    await asking.knows("small")
    other = pod("other", 10)
    other["spec"] |= {"nodeName": "small", "schedulerName": "another"}
    create(server, other)
    mine = a_pod(server, "mine", 10)
    await asking.comes_not_to_fit(mine, "small")
    told = json.dumps({"version": 1, "containers": {"main": {MEMORY: {uuid(0, "small"): 10}}}})
    server.store.patch(PODS, "other", {"metadata": {"annotations": {ALLOCATION: told}}})
    await asking.comes_to_fit(mine, "small")
    assert await asking.bind(mine, "small") == ""
    assert gpu_of(server, "mine") == uuid(1, "small")


@pytest.mark.parametrize("status", [403, 404, 409, 422, 429, 500, 503])
async def test_a_failed_binding_leaves_no_trace(server: ApiServer, tmp_path: Path, status: int) -> None:
    """Where the API server does not bind, the pod has no annotation, and soon nothing is promised."""
    async with extender(server, tmp_path, binder_timing=IMPATIENT) as asking:
        server.refusals.append(Refusal(status, verb="create", times=1, resource=BINDING))
        first = a_pod(server, "first", 10)
        assert str(status) in await asking.bind(first, "n0")
        assert annotations(server, "first") == {}
        await asking.agrees()
        assert await asking.bind(first, "n0") == ""
