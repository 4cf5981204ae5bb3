"""Preemption: kube-scheduler's victims go, and the fewest others with which what is freed is on one GPU."""

from pathlib import Path
from typing import Any

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer, Permission
from tests.logs import logged
from tests.unit.extender.extenders import PODS, Asking, Json, a_pod, create, extender, gpu_of, node, pod
from tests.waiting import until


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
    return {name: {pod["UID"] for pod in each["Pods"]} for name, each in found.items()}


async def test_victims_free_room_on_one_gpu(server: ApiServer, asking: Asking) -> None:
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


async def two_full(server: ApiServer, asking: Asking, *pods: Json) -> None:
    """Fill a node with two GPUs of 10 units by these pods, one after the other."""
    server.store.create(NODES, node("small", 10, 10))
    await asking.knows("small")
    for each in pods:
        assert await asking.bind(each, "small") == ""
    await asking.agrees()


async def test_victims_of_kube_scheduler_that_are_enough_get_no_others(server: ApiServer, asking: Asking) -> None:
    """Where kube-scheduler's victim makes room on a GPU no other pod is evicted, though one is less important."""
    least, proposed = important(server, "least", 10, priority=1), important(server, "proposed", 10, priority=2)
    await two_full(server, asking, least, proposed)
    found = await victims(asking, important(server, "asked", 10), {"small": [proposed]})
    assert found == {"small": {proposed["metadata"]["uid"]}}


async def test_the_fewest_victims_are_added_and_the_most_important_is_first(server: ApiServer, asking: Asking) -> None:
    """Beside a victim that is not enough one pod goes where one is enough, the most important in front."""
    little = important(server, "little", 4, priority=1)
    kept = important(server, "kept", 6, priority=1000)
    large = important(server, "large", 10, priority=5)
    await two_full(server, asking, little, kept, large)
    meta = {"small": {"Pods": [{"UID": little["metadata"]["uid"]}], "NumPDBViolations": 0}}
    asked = important(server, "asked", 10)
    answer = await asking.post("/preempt", {"Pod": asked, "NodeNameToMetaVictims": meta, "NodeNameToVictims": None})
    (found,) = answer["NodeNameToMetaVictims"].values()
    assert found["Pods"] == [{"UID": large["metadata"]["uid"]}, {"UID": little["metadata"]["uid"]}]


async def test_a_node_where_no_eviction_helps_is_left_out(server: ApiServer, asking: Asking) -> None:
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


async def test_pods_without_resources_of_ours_keep_kube_schedulers_victims(server: ApiServer, asking: Asking) -> None:
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


BUDGETS = "/apis/policy/v1/namespaces/team/poddisruptionbudgets"


def budget(server: ApiServer, app: str, allowed: int) -> None:
    """Create a PodDisruptionBudget of the pods of an app."""
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": [app]}]}
    server.store.create(
        BUDGETS,
        {"metadata": {"name": app}, "spec": {"selector": selector}, "status": {"disruptionsAllowed": allowed}},
    )


def labelled(server: ApiServer, name: str, units: int, app: str, started: str | None = None) -> Json:
    """Create a pod of an app, which started at a time."""
    body = pod(name, units, labels={"app": app})
    body["status"]["startTime"] = started
    return create(server, body)


async def answered(asking: Asking, asked: Json, *proposed: Json) -> tuple[list[str], int]:
    """Return the victims and the violations that are answered, where kube-scheduler says that there are 7."""
    given = {"Pods": [{"UID": each["metadata"]["uid"]} for each in proposed], "NumPDBViolations": 7}
    body = {"Pod": asked, "NodeNameToMetaVictims": {"small": given}, "NodeNameToVictims": None}
    found = (await asking.post("/preempt", body))["NodeNameToMetaVictims"]["small"]
    return [each["UID"] for each in found["Pods"]], found["NumPDBViolations"]


async def comes_to_be_answered(asking: Asking, expected: tuple[list[Json], int], asked: Json, *proposed: Json) -> None:
    """Wait until the answer has these victims and violations."""
    uids, found = [each["metadata"]["uid"] for each in expected[0]], ([""], 0)

    async def as_expected() -> bool:
        nonlocal found
        found = await answered(asking, asked, *proposed)
        return found == (uids, expected[1])

    await until(as_expected, lambda: f"{found} answered, {uids} with {expected[1]} violations expected")


async def test_a_victim_whose_budget_allows_the_eviction_is_preferred(server: ApiServer, asking: Asking) -> None:
    """Violations are counted anew; of pods that are each enough one goes whose budget allows it."""
    little = labelled(server, "little", 4, "none")
    kept = important(server, "kept", 6, priority=1000)
    one, two = labelled(server, "one", 10, "one"), labelled(server, "two", 10, "two")
    server.store.create(NODES, node("small", 10, 10, 10))
    await asking.knows("small")
    for each in (kept, little, one, two):
        assert await asking.bind(each, "small") == ""
    await asking.agrees()
    asked = important(server, "asked", 10)
    budget(server, "one", 0)
    await comes_to_be_answered(asking, ([little, two], 0), asked, little)
    budget(server, "two", 0)
    server.store.patch(BUDGETS, "one", {"status": {"disruptionsAllowed": 1}})
    await comes_to_be_answered(asking, ([little, one], 0), asked, little)
    server.store.patch(BUDGETS, "one", {"status": {"disruptionsAllowed": 0}})
    budget(server, "none", 0)
    await comes_to_be_answered(asking, ([one], 1), asked, one)
    server.store.delete(BUDGETS, "two")
    await comes_to_be_answered(asking, ([little, two], 1), asked, little)


async def test_the_latest_of_equally_important_pods_is_the_victim(server: ApiServer, asking: Asking) -> None:
    """Of pods of one priority that are each enough the one goes that has been running for the shortest time."""
    little = labelled(server, "little", 4, "none", "2026-01-01T00:00:00Z")
    kept = important(server, "kept", 6, priority=1000)
    early = labelled(server, "early", 10, "early", "2026-01-01T10:00:00Z")
    late = labelled(server, "late", 10, "late", "2026-01-01T11:00:00Z")
    earliest = labelled(server, "earliest", 10, "earliest", "2026-01-01T09:00:00Z")
    server.store.create(NODES, node("small", 10, 10, 10, 10))
    await asking.knows("small")
    for each in (kept, little, early, late, earliest):
        assert await asking.bind(each, "small") == ""
    await asking.agrees()
    await comes_to_be_answered(asking, ([little, late], 0), important(server, "asked", 10), little)


async def test_victims_that_hold_no_gpu_count_and_unknown_ones_stay(server: ApiServer, asking: Asking) -> None:
    """kube-scheduler needs their CPU: they have budgets as well, and whoever it has just learned of comes first."""
    full = important(server, "full", 10, priority=1)
    await two_full(server, asking, full)
    budget(server, "plain", 0)
    plain = pod("plain", {"cpu": "1"}, labels={"app": "plain"})
    plain["spec"] |= {"nodeName": "small", "priority": 2}
    unknown = {"metadata": {"uid": "unknown"}}
    proposed = [full, create(server, plain), unknown]
    await comes_to_be_answered(asking, ([unknown, proposed[1], full], 1), important(server, "asked", 10), *proposed)


async def test_a_pod_that_waits_for_victims_keeps_its_place(server: ApiServer, asking: Asking) -> None:
    """The GPU that a victim leaves is another pod's, so a less important pod needs a victim of its own."""
    ending, other = important(server, "ending", 10, priority=1), important(server, "other", 10, priority=2)
    await two_full(server, asking, ending, other)
    important(server, "waiting", 10)
    server.store.patch(PODS, "waiting", {"status": {"nominatedNodeName": "small"}})
    asked = important(server, "asked", 10, priority=50)
    await comes_to_be_answered(asking, ([other, ending], 0), asked, ending)


async def test_kube_schedulers_count_stays_without_the_right_to_read_budgets(server: ApiServer, tmp_path: Path) -> None:
    """An extender that may not read budgets says so once, and hands kube-scheduler's number of violations on."""
    server.permissions = [
        Permission(verb, resource, group=group)
        for group, resource in (("", "nodes"), ("", "pods"), ("", "pods/binding"), ("coordination.k8s.io", "leases"))
        for verb in ("list", "watch", "get", "create", "patch")
    ]
    budget(server, "one", 0)
    with logged() as log:
        async with extender(server, tmp_path) as asking:
            one = labelled(server, "one", 10, "one")
            server.store.create(NODES, node("small", 10))
            await asking.knows("small")
            assert await asking.bind(one, "small") == ""
            await asking.agrees()
            assert await answered(asking, important(server, "asked", 10), one) == ([one["metadata"]["uid"]], 7)

            async def told() -> bool:
                return bool([each for each in log if each["event"] == "budgets_forbidden"])

            await until(told)
    assert len([each for each in log if "poddisruptionbudgets" in each.get("path", "")]) == 1
