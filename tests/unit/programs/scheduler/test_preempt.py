"""Preemption: victims are chosen so that what they free is on one GPU."""

from typing import Any

from gpushare_plugin.adapters.cluster.client import NODES
from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.programs.scheduler.extenders import PODS, Asking, Json, a_pod, create, gpu_of, node, pod


def important(server: ApiServer, name: str, units: int, priority: int = 100) -> Json:
    """Create a pod of a priority."""
    body = pod(name, units)
    body["spec"]["priority"] = priority
    return create(server, body)


async def victims(asking: Asking, asked: Json, proposed: dict[str, list[Json]], *, whole: bool = False) -> Any:
    """Return the UIDs of the victims by node, given those that kube-scheduler proposes."""
    if whole:
        given = {name: {"Pods": pods, "NumPDBViolations": 1} for name, pods in proposed.items()}
        answer = await asking.post("/preempt", {"Pod": asked, "NodeNameToVictims": given})
    else:
        meta = {
            name: {"Pods": [{"UID": each["metadata"]["uid"]} for each in pods], "NumPDBViolations": 1}
            for name, pods in proposed.items()
        }
        answer = await asking.post("/preempt", {"Pod": asked, "NodeNameToMetaVictims": meta, "NodeNameToVictims": None})
    found = answer["NodeNameToMetaVictims"]
    assert all(each["NumPDBViolations"] == 1 for each in found.values())
    return {name: {pod["UID"] for pod in each["Pods"]} for name, each in found.items()}


async def test_what_is_freed_is_on_one_gpu(server: ApiServer, asking: Asking) -> None:
    """kube-scheduler proposes a pod that frees the sum; the answer has as many pods of one GPU as are needed."""
    server.store.create(NODES, node("small", 10, 10))
    await asking.knows("small")
    pods = [important(server, f"p{number}", 5, priority=number) for number in range(4)]
    for each in pods:
        assert await asking.bind(each, "small") == ""
    await asking.agrees()
    places = {each["metadata"]["uid"]: gpu_of(server, each["metadata"]["name"]) for each in pods}
    asked = important(server, "asked", 10)
    for whole in (True, False):
        found = await victims(asking, asked, {"small": [pods[0]], "n0": []}, whole=whole)
        assert found["n0"] == set()
        assert pods[0]["metadata"]["uid"] in found["small"]
        gpus = [places[uid] for uid in found["small"]]
        assert max(map(gpus.count, gpus)) == 2


async def test_where_nothing_helps_is_left_out(server: ApiServer, asking: Asking) -> None:
    """A node where all pods of lower priority would not be enough is no candidate."""
    server.store.create(NODES, node("small", 10))
    await asking.knows("small")
    equal, lower = important(server, "equal", 5), important(server, "lower", 5, priority=1)
    for each in (equal, lower):
        assert await asking.bind(each, "small") == ""
    await asking.agrees()
    assert await victims(asking, important(server, "asked", 10), {"small": [lower]}) == {}
    uid = lower["metadata"]["uid"]
    assert await victims(asking, important(server, "modest", 5), {"small": [lower]}) == {"small": {uid}}


async def test_other_pods_preempt_as_kube_scheduler_says(server: ApiServer, asking: Asking) -> None:
    """For a pod that asks for nothing of ours the victims stay as they are."""
    plain, other = a_pod(server, "plain", {"cpu": "1"}), a_pod(server, "other", {"cpu": "1"})
    for whole in (True, False):
        found = await victims(asking, plain, {"n0": [other], "unknown": [other]}, whole=whole)
        assert found == {"n0": {other["metadata"]["uid"]}, "unknown": {other["metadata"]["uid"]}}


async def test_a_nominated_pod_keeps_its_gpu(server: ApiServer, asking: Asking) -> None:
    """While the victims of a pod stop, no pod that is less important gets the GPU that is freed; it may use another."""
    server.store.create(NODES, node("small", 10, 10))
    await asking.knows("small")
    victim, beside = important(server, "victim", 6, priority=1), important(server, "beside", 7, priority=50)
    for each in (victim, beside):
        assert await asking.bind(each, "small") == ""
    await asking.agrees()
    freed, kept = gpu_of(server, "victim"), gpu_of(server, "beside")
    waiting = important(server, "waiting", 10)
    server.store.patch(PODS, "victim", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    server.store.patch(PODS, "waiting", {"status": {"nominatedNodeName": "small"}})
    four = important(server, "four", 4, priority=10)
    await asking.comes_not_to_fit(four, "small")
    assert await asking.bind(four, "small") != ""
    three = important(server, "three", 3, priority=10)
    assert await asking.fits(three, "small") == ["small"]
    assert await asking.bind(three, "small") == ""
    assert gpu_of(server, "three") == kept
    # One that is more important does not wait.
    assert await asking.fits(important(server, "most", 4, priority=1000), "small") == ["small"]
    server.store.delete(PODS, "victim")
    await asking.comes_to_fit(waiting, "small")
    assert await asking.fits(four, "small") == []
    assert await asking.bind(waiting, "small") == ""
    assert gpu_of(server, "waiting") == freed
    await asking.agrees()
