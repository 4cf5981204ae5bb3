"""Tests of `gpushare_plugin.partition.decide`: which slices are wanted, for whom, and which are taken back."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.refusal import Refusal
from gpushare_plugin.ledger.request import Wishes
from gpushare_plugin.partition.decide import Decisions, decide
from gpushare_plugin.partition.elsewhere import ExistingOffer
from gpushare_plugin.partition.nodes import PartitionNode
from gpushare_plugin.partition.taking_back import RoundRules
from gpushare_plugin.slices.memory import MemoryRoom
from gpushare_plugin.slices.room import Layout, Option
from gpushare_plugin.slices.slice import Slice
from gpushare_plugin.slices.wanted import MOST_FAILURES, Failure, KeptSlice, Wanted
from tests.unit.partition.objects import NOW, after, anywhere, decided, gpu, kept, node, pod, wanted, where
from tests.unit.partition.simulation import A100


def refused(found: Decisions, uid: str = "p") -> Refusal:
    """Return why the first node gives a pod no slice."""
    return next(iter(found.refused[uid].nodes.values()))


@pytest.mark.parametrize(
    ("listed", "held", "chosen", "slices"),
    [
        ("10gb 10gb", "10gb", "10gb GPU-a-0 idle", None),
        ("20gb", "", "10gb GPU-a-0 cut", {"10gb": 1}),
        ("5gb 5gb 20gb", "20gb", "10gb GPU-a-0 cut", {"10gb": 1, "20gb": 1}),
        ("5gb 5gb 5gb", "5gb", "10gb GPU-a-0 cut", {"5gb": 1, "10gb": 1}),
        ("20gb", "20gb", "10gb GPU-a-0 free", {"20gb": 1, "10gb": 1}),
        ("16gb 16gb 4gb", "16gb 16gb", "10gb GPU-a-0 joined", None),
    ],
)
def test_idle_slices_are_taken_before_cut_slices_and_free_room(
    listed: str, held: str, chosen: str, slices: dict[str, int] | None
) -> None:
    """An idle slice is taken as it is; then idle ones are cut or joined, then free room is used; held ones stay."""
    found = decided([node(gpu(listed=listed, held=held))], pod("p", "10gb" if "16" not in listed else "8gb"))
    assert where(found) == [chosen.replace("10gb", "8gb") if "16" in listed else chosen]
    if slices is not None:
        assert wanted(found) == slices


def test_idle_slices_that_unknown_gpus_count_against_are_given_once_each() -> None:
    """kube-scheduler counts one of three idle slices against an unknown GPU: two pods get idle slices, not three."""
    nodes = [node(gpu(listed="10gb 10gb 10gb"), unplaced="10gb")]
    found = decided(nodes, *(pod(uid, "10gb", age=age) for uid, age in (("p", 3), ("q", 2), ("r", 1))))
    assert where(found) == where(found, "q") == ["10gb GPU-a-0 idle"]
    assert where(found, "r") == ["10gb GPU-a-0 free"]


def test_an_idle_slice_on_another_node_goes_before_a_cut_slice() -> None:
    """The order of choice counts for the whole cluster, not only on the first node."""
    nodes = [
        node(gpu(listed="20gb")),
        node(gpu(listed="10gb", node="b"), name="b"),
        node(gpu(node="c"), name="c"),
    ]
    first = decided(nodes, pod("p", "10gb"), pod("q", "10gb", age=-1), pod("r", "10gb", age=-2))
    assert where(first) == ["10gb GPU-b-0 idle"]
    assert where(first, "q") == ["10gb GPU-a-0 cut"]
    assert where(first, "r") == ["10gb GPU-a-0 free"]
    assert first.changes.keys() == {"a", "b"}


def test_more_important_pods_and_then_older_ones_are_served_first() -> None:
    """Where there is room for one, the more important pod gets it, or else the older one."""
    nodes = [node(gpu())]
    found = decided(nodes, pod("old", "40gb", age=9), pod("new", "40gb"), pod("vip", "40gb", priority=1))
    assert found.assigned.keys() == {"vip"}
    assert decided(nodes, pod("new", "40gb"), pod("old", "40gb", age=9)).assigned.keys() == {"old"}


def test_binpack_takes_the_fullest_gpu_and_spread_the_emptiest() -> None:
    """The placement policy is that of the pod, the node's label, or the default, which is binpack."""
    gpus = (gpu(0), gpu(1, "20gb", "20gb"))
    assert where(decided([node(*gpus)], pod("p", "10gb"))) == ["10gb GPU-a-1 free"]
    assert where(decided([node(*gpus, policy="spread")], pod("p", "10gb"))) == ["10gb GPU-a-0 free"]
    assert where(decided([node(*gpus)], pod("p", "10gb", policy="spread"))) == ["10gb GPU-a-0 free"]


def replicas_on(found: Decisions, *uids: str) -> list[str]:
    """Return the GPUs that pods have got."""
    return [kept.gpu for uid in uids for kept in found.assigned[uid].kept]


def test_spread_keeps_replicas_of_one_owner_on_different_nodes_and_gpus() -> None:
    """As the extender does: first nodes without a pod of the owner, then those with fewest, and there likewise GPUs."""
    nodes = [node(gpu(0), gpu(1)), node(gpu(0, node="b"), name="b")]
    pods = [pod(f"p{number}", "5gb", age=-number, policy="spread", owner="set") for number in range(5)]
    found = decided(nodes, *pods)
    gpus = replicas_on(found, *(each.uid for each in pods))
    assert gpus == ["GPU-a-0", "GPU-b-0", "GPU-a-1", "GPU-b-0", "GPU-a-0"]
    later = decided(after(nodes, found), *pods, pod("p5", "5gb", age=-5, policy="spread", owner="set"))
    assert replicas_on(later, "p5") == ["GPU-b-0"]
    others = decided(after(nodes, found), *pods, pod("q", "5gb", age=-6, policy="spread", owner="other"))
    assert replicas_on(others, "q") == ["GPU-a-1"]


def test_replicas_that_run_count_and_a_gpu_that_is_not_known_counts_for_its_node() -> None:
    """What pods of the owner have on the node keeps the next one away; binpack does not look at it."""
    there = {"set": {"one": ["GPU-a-0"], "two": []}}
    nodes = [
        node(gpu(0), gpu(1, "10gb", "10gb"), replicas=there),
        node(gpu(0, "35gb", "35gb", node="b"), name="b", replicas={"set": {"three": ["GPU-b-0"]}}),
    ]
    asked = {policy: pod("p", "5gb", policy=policy, owner="set") for policy in ("spread", "binpack")}
    assert replicas_on(decided(nodes, asked["spread"]), "p") == ["GPU-b-0"]
    assert replicas_on(decided(nodes[:1], asked["spread"]), "p") == ["GPU-a-1"]
    assert replicas_on(decided(nodes, asked["binpack"]), "p") == ["GPU-b-0"]
    assert replicas_on(decided(nodes[:1], asked["binpack"]), "p") == ["GPU-a-1"]
    assert replicas_on(decided(nodes[:1], pod("p", "5gb", policy="spread", owner="other")), "p") == ["GPU-a-0"]


def test_the_policy_of_a_node_separates_replicas_there() -> None:
    """A pod that names no policy is placed by that of the node, or by the default."""
    there = {"set": {"one": ["GPU-a-0"]}}
    nodes = [node(gpu(0), gpu(1, "10gb", "10gb"), policy="spread", replicas=there)]
    assert replicas_on(decided(nodes, pod("p", "5gb", owner="set")), "p") == ["GPU-a-1"]
    assert replicas_on(decided(nodes, pod("p", "5gb", "5gb", owner="set")), "p") == ["GPU-a-1", "GPU-a-1"]


def test_an_idle_slice_is_taken_beside_a_replica() -> None:
    """The order of choice goes before the policy."""
    nodes = [node(gpu(0, "5gb"), replicas={"set": {"one": ["GPU-a-0"]}}), node(gpu(0, node="b"), name="b")]
    assert replicas_on(decided(nodes, pod("p", "5gb", policy="spread", owner="set")), "p") == ["GPU-a-0"]


def test_several_slices_of_a_pod_are_on_one_node_and_on_any_of_its_gpus() -> None:
    """A pod with several slices gets all of them on one node, or none."""
    nodes = [
        node(gpu(0, "25gb", "25gb"), gpu(1, "35gb", "35gb")),
        node(gpu(0, "20gb", "20gb", node="b"), gpu(1, "30gb", "30gb", node="b"), name="b"),
    ]
    assert where(decided(nodes, pod("p", "20gb", "10gb"))) == ["20gb GPU-b-0 free", "10gb GPU-b-1 free"]
    found = decided(nodes, pod("p", "15gb", "10gb", "10gb", "5gb"))
    assert not found.assigned
    assert refused(found).summary.startswith("the GPUs have no room for all 4 slices of the pod together")


def test_slices_of_a_pod_are_found_wherever_they_fit_together() -> None:
    """The best place of one slice may leave none for another: 20gb must not go where only 20gb of another kind fit."""
    tight = node(gpu(0, room=MemoryRoom(24), listed="24gb"), gpu(1, "20gb", "20gb"))
    assert where(decided([tight], pod("p", "20gb", "20gb"))) == ["20gb GPU-a-0 cut", "20gb GPU-a-1 free"]
    beside = node(gpu(0, "2g.10gb@4", room=A100), gpu(1, "3g.20gb@0", "3g.20gb@0", room=A100))
    found = where(decided([beside], pod("p", "4g.20gb", "3g.20gb", "3g.20gb")))
    assert sorted(found) == ["3g.20gb@4 GPU-a-0 joined", "3g.20gb@4 GPU-a-1 free", "4g.20gb@0 GPU-a-0 free"]


def test_gpus_that_a_pod_does_not_accept_are_left_out() -> None:
    """A pod that names GPUs gets its slice on one of these."""
    wishes = Wishes(uuids=("GPU-a-1",))
    asked = pod("p", "10gb", wishes=wishes)
    assert where(decided([node(gpu(0), gpu(1))], asked)) == ["10gb GPU-a-1 free"]
    found = decided([node(gpu(0))], asked)
    assert refused(found).shortages[0].text == "GPU 0: not among the GPUs that the pod wants"


def test_a_mig_instance_is_placed_where_it_leaves_most_places_to_others() -> None:
    """The smallest instance goes to the end of the card, so that the large profiles still have their places."""
    found = decided([node(gpu(room=A100))], pod("p", "1g.5gb"), pod("q", "3g.20gb", age=-1))
    assert where(found) == ["1g.5gb@6 GPU-a-0 free"]
    assert where(found, "q") == ["3g.20gb@0 GPU-a-0 free"]


def test_idle_instances_make_room_for_a_larger_one_and_those_in_use_do_not() -> None:
    """An instance overlaps only idle ones; compute slices are limited, too."""
    nodes = [node(gpu(0, "1g.5gb@0 1g.5gb@4", "1g.5gb@4", room=A100))]
    found = decided(nodes, pod("p", "4g.20gb"))
    assert where(found) == ["4g.20gb@0 GPU-a-0 joined"]
    assert wanted(found) == {"1g.5gb@4": 1, "4g.20gb@0": 1}
    why = refused(decided(nodes, pod("p", "7g.40gb")))
    assert why.summary == "no GPU has room for nvidia.com/mig-7g.40gb"
    assert [each.text for each in why.shortages] == ["GPU 0 has 7 of 8 memory slices left, 1 missing"]


def test_a_decision_stays_until_the_pod_has_a_node() -> None:
    """The next round changes nothing, whether the slices are listed yet or not, until the pod has a node."""
    nodes = [node(gpu(0, "20gb"), gpu(1))]
    found = decided(nodes, pod("p", "10gb"), pod("q", "5gb"))
    for later in (after(nodes, found), [PartitionNode("a", nodes[0].gpus, found.changes["a"])]):
        again = decided(later, pod("p", "10gb"), pod("q", "5gb"), seconds=30)
        assert not again.changes
        assert where(again) == ["10gb GPU-a-0 kept"]
        assert again.next_at == NOW + timedelta(seconds=60)


def test_slices_of_a_pod_that_has_a_node_are_kept_no_longer() -> None:
    """Once the pod is seen with a node, or has gone, its slices are idle; what was never seen is kept for a while."""
    nodes = [PartitionNode("a", (gpu(0, "10gb"),), Wanted({"GPU-a-0": {"10gb": 1}}, {"p": (kept("10gb"),)}))]
    assert not decided(nodes, known=["p"]).changes["a"].pods
    assert not decided(nodes, seconds=9).changes
    assert decided(nodes, seconds=9).next_at == NOW + timedelta(seconds=10)
    assert decided(nodes, pod("q", "40gb"), seconds=9).refused
    assert not decided(nodes, seconds=10).changes["a"].pods


def test_a_slice_that_is_not_taken_in_time_is_tried_elsewhere() -> None:
    """After the patience the slice is idle, the failure is remembered, and another node is tried, with the reason."""
    nodes = [node(gpu()), node(gpu(node="b"), name="b")]
    there = after(nodes, decided(nodes, pod("p", "40gb")))
    assert not decided(there, pod("p", "40gb"), seconds=59).taken_back
    found = decided(there, pod("p", "40gb"), seconds=60)
    (taken,) = found.taken_back
    assert (taken.node, taken.failed, taken.reason) == ("a", True, "the pod did not take it within 60 seconds")
    assert found.changes["a"] == Wanted({"GPU-a-0": {"40gb": 1}}, {}, {"p": Failure(NOW + timedelta(seconds=60))})
    assert where(found) == ["40gb GPU-b-0 free"]


def test_the_node_that_failed_first_is_tried_again_later_and_later() -> None:
    """Once all have failed, the delay is two minutes, and doubles with each failure; the node keeps the idle slice."""
    asked = pod("p", "40gb")
    nodes = after([node(gpu())], decided([node(gpu())], asked))
    found = decided(nodes, asked, seconds=60)
    assert found.next_at == NOW + timedelta(seconds=180)
    assert refused(found).summary.startswith("the pod did not take its slices there in time")
    nodes = after(nodes, found)
    assert not decided(nodes, asked, seconds=179).changes
    again = decided(nodes, asked, seconds=180)
    assert where(again) == ["40gb GPU-a-0 idle"]
    failed = decided(after(nodes, again), asked, seconds=240)
    assert failed.changes["a"].failed == {"p": Failure(NOW + timedelta(seconds=240), 2)}
    assert failed.next_at == NOW + timedelta(seconds=480)
    assert not decided(after(nodes, failed), known=["p"]).changes["a"].failed


def test_a_more_important_pod_gets_room_that_is_not_offered_yet_and_no_other() -> None:
    """Slices that are kept for a less important pod are given up only while the node does not list them."""
    pods = {"low": (kept("40gb"),)}
    making = PartitionNode("a", (gpu(),), Wanted({"GPU-a-0": {"40gb": 1}}, pods))
    asked = pod("low", "40gb"), pod("high", "10gb", priority=1)
    found = decided([making], *asked)
    assert where(found, "high") == ["10gb GPU-a-0 cut"]
    assert found.taken_back[0].reason == "pod ns/high, which has a higher priority, needs its room"
    assert found.refused.keys() == {"low"}
    offered = PartitionNode("a", (gpu(listed="40gb"),), making.wanted)
    assert decided([offered], *asked).refused.keys() == {"high"}
    maybe_held = PartitionNode("a", (gpu(),), making.wanted, {"40gb": 1})
    assert decided([maybe_held], *asked).refused.keys() == {"high"}


def test_a_more_important_pod_takes_slices_only_where_their_room_helps() -> None:
    """Less important pods whose slices are on another GPU keep theirs, though they would go first."""
    low = [pod(f"low-{number}", "5gb") for number in range(4)]
    keeping = {each.uid: (kept("5gb"),) for each in low} | {"middle": (kept("40gb", 1),)}
    slices = {"GPU-a-0": {"5gb": 4}, "GPU-a-1": {"40gb": 1}}
    making = PartitionNode("a", (gpu(room=MemoryRoom(20)), gpu(1)), Wanted(slices, keeping))
    found = decided([making], *low, pod("middle", "40gb", priority=1), pod("high", "40gb", priority=5))
    assert [taken.uid for taken in found.taken_back] == ["middle"]
    assert found.assigned.keys() == {"high", *(each.uid for each in low)}


def test_a_more_important_pod_takes_slices_until_it_can_run_on_the_node() -> None:
    """Where the room alone does not help, pods go that take the CPU; where nothing helps, none does."""
    keeping = {name: (kept("20gb", index),) for index, name in enumerate(("first", "second"))}
    making = PartitionNode("a", (gpu(), gpu(1)), Wanted({f"GPU-a-{each}": {"20gb": 1} for each in (0, 1)}, keeping))
    asked = pod("first", "20gb"), pod("second", "20gb"), pod("high", "40gb", priority=5)

    def cpu(refused: Pod, _node: str, beside: Sequence[Pod]) -> str | None:
        taken = refused.uid == "high" and any(each.uid == "second" for each in beside)
        return "cpu: 6 asked, 2 free" if taken else None

    found = decided([making], *asked, runs_on=cpu)
    assert found.assigned.keys() >= {"high"}
    assert "second" in {taken.uid for taken in found.taken_back}
    never = decided([making], *asked, runs_on=lambda refused, *_: "cordoned" if refused.uid == "high" else None)
    assert not never.taken_back
    assert never.refused.keys() == {"high"}


def test_slices_that_a_pod_may_hold_are_not_cut() -> None:
    """Of a pod whose GPU is not known yet, any slice of its size may be the one that it has."""
    found = decided([node(gpu(0, "20gb"), gpu(1, "20gb 20gb"), unplaced="20gb")], pod("p", "30gb"))
    assert refused(found).missing == 10
    assert where(decided([node(gpu(0, "20gb"), gpu(1, "20gb 20gb"), unplaced="20gb")], pod("p", "10gb"))) == [
        "10gb GPU-a-1 cut"
    ]
    assert where(decided([node(gpu(0, "20gb"), unplaced="20gb")], pod("p", "20gb"))) == ["20gb GPU-a-0 free"]


def test_slices_held_on_a_gpu_that_cannot_be_used_count_against_the_others() -> None:
    """Kube-scheduler subtracts them from what the healthy GPUs offer, so a new slice of that size would stay unused."""
    sick = node(gpu(0, "10gb", "10gb", reason="unhealthy: XID 79"), gpu(1))
    found = decided([sick], pod("p", "10gb"), pod("q", "5gb"))
    assert where(found, "q") == ["5gb GPU-a-1 free"]
    assert "which kube-scheduler counts against the other GPUs" in refused(found).summary


@pytest.mark.parametrize("seconds", [1, 60])
def test_a_slice_that_another_pod_took_is_made_again(seconds: float) -> None:
    """Where a pod holds what was kept for another, that one gets a new place, and is told why, however late it is.

    It has not failed to take its slice: the node is as good for it as others.
    """
    nodes = [PartitionNode("a", (gpu(0, "10gb", "10gb"),), Wanted({"GPU-a-0": {"10gb": 1}}, {"p": (kept("10gb"),)}))]
    found = decided(nodes, pod("p", "10gb"), seconds=seconds)
    (taken,) = found.taken_back
    assert (taken.reason, taken.failed, taken.swapped) == ("another pod has the slice 10gb of GPU 0", False, False)
    assert wanted(found) == {"10gb": 2}
    assert where(found) == ["10gb GPU-a-0 free"]
    assert not found.changes["a"].failed


def test_a_pod_that_is_late_because_of_others_whose_gpu_is_not_known_is_told_that() -> None:
    """A pod that came to the node has a slice of that size; which one it has is not known yet, and may never be."""
    there = Wanted({"GPU-a-0": {"10gb": 1}}, {"p": (kept("10gb"),)})
    here = PartitionNode("a", (gpu(0, "10gb"), gpu(1)), there, {"10gb": 1})
    assert not decided([here], pod("p", "10gb"), seconds=59).taken_back
    found = decided([here], pod("p", "10gb"), seconds=60)
    (taken,) = found.taken_back
    why = "kube-scheduler counted no slice 10gb of the node as free within 60 seconds"
    assert (taken.reason, taken.failed) == (why, True)


@pytest.mark.parametrize("name", ["a", "b"])
def test_pods_that_swap_their_slices_cost_nothing(name: str) -> None:
    """kube-scheduler gives slices of one size to any of the pods: who waits gets what is left, on any node.

    Nothing is made for that, so there is nothing to tell.
    """
    first, second = gpu(0, "10gb", "10gb"), gpu(1, "10gb", node=name)
    gpus = (first, second) if name == "a" else (first,)
    own = {"p": (kept("10gb"),)}
    nodes = [PartitionNode("a", gpus, Wanted({each.uuid: each.listed for each in gpus}, own))]
    if name == "b":
        nodes.append(
            PartitionNode("b", (second,), Wanted({second.uuid: second.listed}, {"q": (kept("10gb", 1, "b"),)}))
        )
    found = decided(nodes, pod("p", "10gb"), known=["q"], seconds=1)
    assert where(found) == [f"10gb GPU-{name}-1 idle"]
    assert [each.swapped for each in found.taken_back] == [True]
    assert not decided(after(nodes, found), pod("p", "10gb"), known=["q"], seconds=2).changes


def test_a_pod_that_cannot_run_on_its_node_any_longer_has_not_failed_there() -> None:
    """What keeps it away is the reason, and not that the pod is late."""
    here = PartitionNode("a", (gpu(0, "10gb"),), Wanted({"GPU-a-0": {"10gb": 1}}, {"p": (kept("10gb"),)}))
    found = decided([here], pod("p", "10gb"), seconds=60, runs_on=lambda *_: "the node is cordoned")
    assert [(each.reason, each.failed) for each in found.taken_back] == [("the node is cordoned", False)]


@pytest.mark.parametrize(
    ("node_now", "asked", "reason"),
    [
        (node(gpu(0, "10gb", reason="unhealthy: XID 79")), "10gb", "GPU 0 cannot be used: unhealthy: XID 79"),
        (node(gpu(1, "10gb")), "10gb", "the node does not have GPU-a-0 any more"),
        (node(gpu(0, "10gb")), "20gb", "the pod asks for other slices"),
    ],
)
def test_slices_that_cannot_be_kept_are_given_up_with_the_reason(
    node_now: PartitionNode, asked: str, reason: str
) -> None:
    """A pod whose slices cannot be kept is considered again at once."""
    there = PartitionNode("a", node_now.gpus, Wanted({"GPU-a-0": {"10gb": 1}}, {"p": (kept("10gb"),)}))
    assert decided([there], pod("p", asked), seconds=1).taken_back[0].reason == reason


def test_the_older_of_two_nodes_for_one_pod_stays() -> None:
    """Two that decide at once may both keep slices for a pod; both of them then give up the same."""
    nodes = [
        PartitionNode("a", (gpu(0, "10gb"),), Wanted({"GPU-a-0": {"10gb": 1}}, {"p": (kept("10gb", seconds=-1),)})),
        PartitionNode("b", (gpu(0, "10gb", node="b"),), Wanted({}, {"p": (kept("10gb", name="b", seconds=-2),)})),
    ]
    found = decided(nodes, pod("p", "10gb"))
    assert found.assigned["p"].node == "b"
    assert found.taken_back[0].reason == "the pod has slices on node b already"


def test_nodes_where_the_pod_cannot_run_are_not_considered() -> None:
    """Any reason that keeps a pod from a node is asked for, beside the pods that are to come there, and told."""

    def runs_on(asked: Pod, name: str, beside: Sequence[Pod]) -> str | None:
        if name == "b":
            return "not tolerated: taint gpu"
        return f"cpu: 4 asked, 0 free beside {beside[0].uid}" if beside and asked.uid != beside[0].uid else None

    nodes = [node(gpu()), node(gpu(node="b"), name="b")]
    found = decided(nodes, pod("p", "10gb", age=9), pod("q", "10gb"), runs_on=runs_on)
    assert where(found) == ["10gb GPU-a-0 free"]
    reasons = [each.summary for each in found.refused["q"].nodes.values()]
    assert reasons == ["cpu: 4 asked, 0 free beside p", "not tolerated: taint gpu"]
    closed = decided(after(nodes, found), pod("p", "10gb"), runs_on=lambda *_: "the node is cordoned")
    assert closed.taken_back[0].reason == "the node is cordoned"


def test_a_gpu_that_the_annotation_does_not_name_begins_with_what_it_lists() -> None:
    """Slices that nos's annotations ask for, or that were there before, are not lost; other GPUs stay unnamed."""
    nodes = [PartitionNode("a", (gpu(0, "10gb 20gb", "20gb"), gpu(1, "20gb")))]
    assert not decided(nodes).changes
    assert decided(nodes, pod("p", "5gb")).changes["a"].gpus == {"GPU-a-0": {"20gb": 1, "5gb": 1}}


def test_a_gpu_is_named_only_if_something_is_to_change_for_a_pod() -> None:
    """What its node lists may not be what could be made there; without a pod that is nobody's concern."""
    nodes = [PartitionNode("a", (gpu(0, "1g.5gb@0 4g.20gb@0", room=A100), gpu(1, "", "10gb")))]
    assert not decided(nodes).changes
    assert decided(nodes, pod("p", "7g.40gb")).changes["a"].gpus == {"GPU-a-0": {"7g.40gb@0": 1}}


class Faulty(MemoryRoom, frozen=True):
    """The room of a GPU that no decision can handle."""

    def options(self, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
        """Fail."""
        raise LookupError(f"{wanted.name} beside {layout.all}")

    def left(self, layout: Layout) -> int:
        """Fail for a layout with slices of 3 GiB."""
        if "3gb" in layout.all:
            raise LookupError("3gb")
        return super().left(layout)


def test_wanted_slices_stay_small_however_many_pods_take_none() -> None:
    """Of the pods that did not take theirs, only the last are remembered."""
    slices = {f"{number:03}": (kept("1gb"),) for number in range(300)}
    asked = [pod(uid, "1gb") for uid in slices]
    there = PartitionNode("a", (gpu(0, "1gb " * 300, room=MemoryRoom(320, 320)),), Wanted({}, slices))
    assert len(decided([there], *asked, seconds=60).changes["a"].failed) == MOST_FAILURES


@pytest.mark.parametrize("listed", ["", "3gb"])
def test_a_node_that_meets_a_defect_is_left_out_and_all_others_are_served(listed: str) -> None:
    """Whether the defect is met where the node is reviewed or where room is searched; the reason is told."""
    nodes = [node(gpu(0, listed, room=Faulty(40))), node(gpu(node="b"), name="b")]
    found = decided(nodes, pod("p", "30gb", age=9), pod("q", "30gb"))
    assert where(found) == ["30gb GPU-b-0 free"]
    assert found.changes.keys() == {"b"}
    assert not found.broken
    (out,) = found.left_out
    assert (out.node, type(out.error)) == ("a", LookupError)
    assert out.reason.startswith("a defect of gpushare: LookupError: ")
    assert refused(found, "q").summary == f"left out: {out.reason}"


def test_a_pod_is_offered_the_same_if_it_is_decided_again_without_a_node() -> None:
    """Slices that need not be made are given out once: to ask for them a second time would give the pod others."""
    offers = iter([ExistingOffer("c", NOW + timedelta(seconds=60))])
    rules = RoundRules(anywhere, ["p", "q"], existing_offer=lambda pod: next(offers, None) if pod.uid == "p" else None)
    nodes = [node(gpu(0, room=Faulty(40))), node(gpu(node="b"), name="b")]
    found = decide(nodes, [pod("p", "30gb", age=9), pod("q", "30gb")], NOW, rules)
    assert found.elsewhere.keys() == {"p"}
    assert where(found, "q") == ["30gb GPU-b-0 free"]
    assert [each.node for each in found.left_out] == ["a"]


def test_wanted_slices_that_do_not_fit_beside_held_ones_are_wanted_no_longer() -> None:
    """The annotation comes to say what the daemon does: held slices first, then those that fit beside them."""
    nodes = [PartitionNode("a", (gpu(0, "20gb 10gb", "20gb"),), Wanted({"GPU-a-0": {"10gb": 1, "30gb": 1}}))]
    assert wanted(decided(nodes)) == {"20gb": 1, "10gb": 1}


@pytest.mark.parametrize(
    "at", [NOW + timedelta(seconds=2), datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)]
)
def test_times_of_a_wrong_clock_keep_nothing_for_longer(at: datetime) -> None:
    """What another partitioner wrote with a clock that is ahead counts as written now, and what is old as over."""
    wanted_ = Wanted({"GPU-a-0": {"10gb": 1}}, {"p": (KeptSlice("GPU-a-0", "10gb", at),)}, {"q": Failure(at, 1000)})
    here = PartitionNode("a", (gpu(),), wanted_)
    found = decided([here], pod("p", "10gb"), pod("q", "10gb"))
    if at < NOW:
        assert [each.uid for each in found.taken_back] == ["p"]
        assert found.assigned.keys() == {"q"}
    else:
        assert found.changes["a"].pods["p"] == (KeptSlice("GPU-a-0", "10gb", NOW),)
        assert found.changes["a"].failed["q"] == Failure(NOW, 1000)
        assert found.next_at == NOW + timedelta(seconds=60)


def test_slices_of_the_other_kind_in_the_annotation_are_dropped() -> None:
    """After the label of a node has changed, what was wanted of its GPUs before means nothing there."""
    for there, room in (("3g.20gb@4", MemoryRoom(40)), ("10gb", A100)):
        wanted_ = Wanted({"GPU-a-0": {there: 1}}, {"p": (KeptSlice("GPU-a-0", there, NOW),)})
        here = PartitionNode("a", (gpu(room=room),), wanted_)
        own = "10gb" if there.startswith("3g") else "3g.20gb"
        found = decided([here], pod("p", own))
        assert found.assigned["p"].how
        assert there not in found.changes["a"].gpus["GPU-a-0"]


def test_slices_kept_for_pods_that_are_not_seen_are_looked_at_again() -> None:
    """Time alone ends it, so a round is due then, whatever else happens."""
    wanted_ = Wanted({"GPU-a-0": {"40gb": 1}}, {"unseen": (kept("40gb", seconds=-4),)})
    here = PartitionNode("a", (gpu(),), wanted_)
    found = decided([here], pod("p", "40gb"))
    assert found.refused.keys() == {"p"}
    assert found.next_at == NOW + timedelta(seconds=6)
    wanted_ = Wanted({}, {}, {"unseen": Failure(NOW - timedelta(seconds=3))})
    assert decided([PartitionNode("a", (gpu(),), wanted_)]).next_at == NOW + timedelta(seconds=7)


def test_a_defect_that_one_pod_meets_stops_no_other() -> None:
    """A pod whose decision breaks is named with what broke; the others get their slices, and nothing is kept for it."""

    def broken(asking: Pod, _node: str, _beside: Sequence[Pod]) -> None:
        if asking.uid == "bad":
            raise ZeroDivisionError

    found = decided([node(gpu())], pod("bad", "10gb", age=9), pod("p", "10gb"), runs_on=broken)
    assert found.assigned.keys() == {"p"}
    assert [(each.pod.uid, type(each.error)) for each in found.broken] == [("bad", ZeroDivisionError)]
    wanted_ = Wanted({"GPU-a-0": {"10gb": 1}}, {"bad": (kept("10gb"),)})
    again = decided([PartitionNode("a", (gpu(),), wanted_)], pod("bad", "10gb"), pod("p", "10gb"), runs_on=broken)
    assert again.assigned.keys() == {"bad", "p"}
    assert "bad" in again.changes["a"].pods
    assert [each.pod.uid for each in again.broken] == ["bad"]
