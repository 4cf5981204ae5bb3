"""Tests of `gpushare_plugin.ledger.kube_scheduler`: what a refusal says, and what holds for all pods and nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.constraints import Constraints, Needs, Requirement, Term, Toleration
from gpushare_plugin.ledger.demand import ANY_ADDRESS, NOTHING, Demand, HostPort
from gpushare_plugin.ledger.kube_scheduler import (
    Screening,
    constraints_refusal,
    has_room,
    refusal,
    room_refusal,
    written,
)
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.ledger.taint import Taint

SLICE = "nvidia.com/gpu-10gb"
NODE = Node("node", labels={"zone": "a"}, allocatable={"cpu": 4000, "memory": 8 << 30, "pods": 10})
ANYWHERE = Constraints()

AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "pods", SLICE]), st.integers(1, 9))
PORTS = st.builds(
    HostPort, st.integers(1, 3), st.sampled_from(["TCP", "UDP"]), st.sampled_from([ANY_ADDRESS, "10.0.0.1", "10.0.0.2"])
)
NAMES = ["one", "two"]
NODES = st.builds(
    Node,
    st.sampled_from(NAMES),
    labels=st.sampled_from([{}, {"zone": "a"}]),
    taints=st.sampled_from([(), (Taint("a", effect="NoSchedule"),)]),
    unschedulable=st.booleans(),
    allocatable=st.sampled_from([{}, {"cpu": 1}]),
)
SOME = [ANYWHERE, Constraints((("zone", "a"),)), Constraints(tolerations=(Toleration(operator="Exists"),))]
DEMANDS = st.builds(Demand, AMOUNTS, st.dictionaries(PORTS, st.just(1), max_size=2))


def words(pod: Pod, node: Node = NODE, used: Demand = NOTHING) -> str:
    """Return why a pod cannot run on a node."""
    found = refusal(pod, node, used)
    assert found is not None
    return found.summary


def waiting(constraints: Constraints = ANYWHERE, ports: tuple[int, ...] = (), **asked: int) -> Pod:
    """Return a pod that waits for a node."""
    demand = Demand(asked, dict.fromkeys(map(HostPort, ports), 1))
    return Pod("uid", "", "", PodRequest(()), needs=Needs(constraints, demand))


def test_missing_resources_are_named_with_numbers() -> None:
    """Each resource of which too little is free is named, as people write amounts."""
    used = Demand({"cpu": 1500, "memory": 7 << 30, "pods": 10})
    assert (
        words(waiting(cpu=3000, memory=1 << 30, pods=1), used=used) == "cpu: 3 asked, 2.5 free; pods: 1 asked, 0 free"
    )
    assert words(waiting(memory=1536 << 20), used=used) == "memory: 1536Mi asked, 1Gi free"
    assert refusal(waiting(cpu=2500), NODE, used) is None


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        (Constraints(selector=(("zone", "b"),)), "node selector: zone=b required, zone=a found"),
        (Constraints(selector=(("disk", ""),)), "node selector: disk= required, the node has no label disk"),
        (Constraints(affinity=()), "node affinity: there is no term that a node could match"),
        (Constraints(affinity=(Term(),)), "node affinity: a term that is empty matches no node"),
        (
            Constraints(affinity=(Term((Requirement("zone", "In", ("b", "c")),)), Term((Requirement("a", "Exists"),)))),
            "node affinity: zone In b, c required, zone=a found; or a Exists required, the node has no label a",
        ),
        (
            Constraints(affinity=(Term(fields=(Requirement("metadata.name", "In", ("other",)),)),)),
            "node affinity: metadata.name In other required",
        ),
    ],
)
def test_a_label_that_a_node_lacks_is_named(constraints: Constraints, said: str) -> None:
    """The label that is required, and what the node has instead."""
    assert words(waiting(constraints)) == said


def test_taints_and_cordons_are_named() -> None:
    """All taints that are not tolerated are named, but those that only repel; a cordon comes first."""
    taints = (Taint("a", "b", "NoSchedule"), Taint("c", effect="NoExecute"), Taint("d", effect="PreferNoSchedule"))
    tainted = replace(NODE, taints=taints)
    assert words(waiting(), tainted) == "not tolerated: taints a=b:NoSchedule, c:NoExecute"
    assert words(waiting(), replace(tainted, unschedulable=True)) == "the node is cordoned"


@pytest.mark.parametrize(("value", "tolerated"), [("5", True), ("05", False), ("", False), ("-0", False), ("4", False)])
def test_numbers_of_taints_are_plain(value: str, tolerated: bool) -> None:  # noqa: FBT001 - what is expected
    """Where tolerations compare, a number has no leading zeros, unlike those of labels."""
    toleration = Toleration("speed", "Gt", "4")
    assert toleration.tolerates(Taint("speed", value, "NoSchedule")) is tolerated
    assert Requirement("speed", "Gt", ("4",)).met_by({"speed": "05"})


def test_host_ports_that_are_taken_are_named() -> None:
    """They come before resources, as in kube-scheduler."""
    used = waiting(ports=(80, 81, 90), pods=1).needs.demand
    assert words(waiting(ports=(80, 81), cpu=9000), used=used) == "host ports taken: 80, 81"
    assert refusal(waiting(ports=(82,)), NODE, used) is None


def test_a_pod_that_is_bound_runs_on_its_node_only() -> None:
    """Another node refuses it; pods that wait, and nothing holds back, are the ones to find a node for."""
    bound = replace(waiting(), node="node")
    assert refusal(bound, NODE, NOTHING) is None
    assert words(replace(waiting(), node="other")) == "the pod is on node other"
    assert waiting().schedulable
    assert not any(
        pod.schedulable for pod in (bound, replace(waiting(), gates=("a",)), replace(waiting(), phase_final=True))
    )


def test_resources_that_are_still_to_be_made_can_be_left_out() -> None:
    """Slices that gpushare makes for the pod are not missing."""
    asked = Demand({SLICE: 2, "cpu": 5000})
    missing = room_refusal(asked, NODE, NOTHING, {SLICE})
    assert missing is not None
    assert [shortage.name for shortage in missing.shortages] == ["cpu"]
    assert has_room(asked, NODE, NOTHING, {SLICE, "cpu"})


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 250, "0.25"),
        ("cpu", 0, "0"),
        ("cpu", 10000, "10"),
        ("cpu", -500, "-0.5"),
        ("memory", 0, "0"),
        ("memory", 1025, "1025"),
        ("memory", 1 << 72, "4096Ei"),
        ("hugepages-2Mi", 2 << 20, "2Mi"),
        (SLICE, 1024, "1024"),
    ],
)
def test_amounts_are_written_exactly(resource: str, amount: int, text: str) -> None:
    """Nothing is rounded, so that what is asked and what is free never look the same."""
    assert written(resource, amount) == text


def test_screening_keeps_a_bounded_number_of_answers() -> None:
    """Thousands of different constraints do not grow it; each answer is right all the same."""
    screening = Screening({NODE.name: NODE})
    for number in range(2000):
        assert not screening.admitting(Constraints(selector=(("zone", str(number)),)))
    assert screening.admitting(ANYWHERE) == {"node"}
    assert screening.admitting(Constraints(selector=(("zone", "0"),))) == set()


@given(st.lists(st.one_of(NODES, st.sampled_from(NAMES)), max_size=12))
def test_screening_is_the_same_as_asking_each_node(steps: list[Node | str]) -> None:
    """However nodes come, change and go, those are kept that admit a pod."""
    nodes = dict[str, Node]()
    screening = Screening(nodes)
    for step in steps:
        if isinstance(step, str):
            nodes.pop(step, None)
            screening.remove(step)
        else:
            before, nodes[step.name] = nodes.get(step.name), step
            screening.put(step, before)
        for constraints in SOME:
            admitting = {name for name, node in nodes.items() if constraints_refusal(constraints, node) is None}
            assert screening.admitting(constraints) == admitting


@given(st.lists(DEMANDS, max_size=6), st.data())
def test_a_sum_is_the_same_however_pods_came_and_went(demands: list[Demand], data: st.DataObject) -> None:
    """Adding and taking away pods, in any order, ends with the sum of those that stay."""
    used = sum(demands, NOTHING)
    gone = data.draw(st.permutations(demands))[: len(demands) // 2]
    for demand in gone:
        used -= demand
    stay = list(demands)
    for demand in gone:
        stay.remove(demand)
    assert used == sum(reversed(stay), NOTHING)


@given(DEMANDS, DEMANDS, AMOUNTS, AMOUNTS)
def test_a_pod_that_fits_still_fits_where_there_is_more(
    asked: Demand, used: Demand, allocatable: dict[str, int], more: dict[str, int]
) -> None:
    """More room, fewer pods and fewer requests never turn a node that can take a pod into one that cannot."""
    node = Node("node", allocatable=allocatable)
    larger = replace(node, allocatable=(Demand(allocatable) + Demand(more)).resources)
    if has_room(asked, node, used):
        assert has_room(asked, larger, used)
        assert has_room(asked, node, NOTHING)
        assert has_room(NOTHING, node, used)
    else:
        assert not has_room(asked + Demand(more), node, used)


@given(DEMANDS, DEMANDS, AMOUNTS)
def test_a_reason_is_given_exactly_if_a_node_has_no_room(
    asked: Demand, used: Demand, allocatable: dict[str, int]
) -> None:
    """The shortages are those by which resources are missing."""
    node = Node("node", allocatable=allocatable)
    missing = room_refusal(asked, node, used)
    assert (missing is None) == has_room(asked, node, used)
    if missing is not None and missing.cause == "resources":
        enough = {shortage.name: shortage.missing for shortage in missing.shortages}
        assert all(amount > 0 for amount in enough.values())
        assert has_room(asked, replace(node, allocatable=(Demand(allocatable) + Demand(enough)).resources), used)
