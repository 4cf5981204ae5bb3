"""Tests of `gpushare_plugin.partition.elsewhere`: which pods find slices on other nodes."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.constraints import Constraints, shared_needs
from gpushare_plugin.ledger.demand import Demand
from gpushare_plugin.ledger.kube_scheduler import Screening
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.node_record import NodeRecord
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import Wishes
from gpushare_plugin.ledger.taint import Taint
from gpushare_plugin.partition.decide import Decisions, decide
from gpushare_plugin.partition.elsewhere import Elsewhere
from gpushare_plugin.partition.taking_back import RoundRules
from gpushare_plugin.slices.slice import SliceKind
from tests.unit.partition.objects import NOW, anywhere, gpu, kept, node, pod

TEN, MIG = "nvidia.com/gpu-10gb", "nvidia.com/mig-3g.20gb"
ROOM = {"cpu": 4000, "pods": 110}


class Cluster:
    """Nodes that offer slices as they are, beside a node `a` with one partitioned GPU; pods take a CPU each."""

    def __init__(self) -> None:
        """Begin without any other node."""
        self.used: dict[str, Demand] = {}
        self.nodes: dict[str, Node] = {}
        self.screening = Screening(self.nodes)
        self.elsewhere = Elsewhere(self.nodes, self.screening, self.used)
        self.accepts = True

    def put(
        self,
        name: str,
        used: Mapping[str, int] | None = None,
        by: SliceKind | None = None,
        *,
        ten: int = 0,
        mig: int = 0,
    ) -> Node:
        """Have a node offer slices, of which pods have taken some."""
        names, amounts = {"ten": TEN, "mig": MIG}, {TEN: ten, MIG: mig}
        record = NodeRecord(gpus=(), partitioning=by)
        found = Node(name, allocatable={**ROOM, **amounts}, record=record)
        self.used[name] = Demand({names.get(key, key): amount for key, amount in (used or {}).items()})
        self.take(found)
        return found

    def take(self, found: Node) -> None:
        """Take in a node."""
        before, self.nodes[found.name] = self.nodes.get(found.name), found
        self.screening.put(found, before)
        self.elsewhere.put(found)

    def decided(self, *pods: Pod, seconds: float = 0) -> Decisions:
        """Return what is decided some seconds from now."""
        judged = [replace(each, needs=shared_needs(Constraints(), demand(each))) for each in pods]
        now = NOW + timedelta(seconds=seconds)
        existing = self.elsewhere.search(lambda _pod, _node: self.accepts, now, 60)
        return decide(
            [node(gpu())], judged, now, RoundRules(anywhere, {each.uid for each in pods}, existing_offer=existing)
        )


def demand(asking: Pod) -> Demand:
    """Return what a pod takes."""
    amounts = {each.resource: asking.slices.count(each) for each in asking.slices}
    return Demand({"cpu": 1000, "pods": 1, **amounts})


@pytest.fixture
def cluster() -> Cluster:
    """Return a cluster."""
    return Cluster()


def test_no_slice_is_made_for_a_pod_that_another_node_offers_one(cluster: Cluster) -> None:
    """kube-scheduler binds it in a moment; so many pods as there are slices wait for that, in their order."""
    cluster.put("fixed", {"ten": 2}, ten=3)
    found = cluster.decided(pod("new", "10gb"), pod("old", "10gb", age=9))
    assert {uid: offer.node for uid, offer in found.elsewhere.items()} == {"old": "fixed"}
    assert found.assigned.keys() == {"new"}
    assert not found.refused


@pytest.mark.parametrize(("used", "ten"), [({"ten": 1}, 1), ({"cpu": 3500}, 1), ({"pods": 110}, 1), ({}, 0)])
def test_a_node_that_cannot_take_the_pod_offers_it_nothing(cluster: Cluster, used: Mapping[str, int], ten: int) -> None:
    """Slices that pods have, and whatever else is missing there by the rules of kube-scheduler, count for nothing."""
    cluster.put("fixed", used, ten=ten, mig=1)
    assert cluster.decided(pod("p", "10gb")).assigned.keys() == {"p"}


def test_taints_and_labels_keep_pods_away_from_slices_as_from_anything(cluster: Cluster) -> None:
    """A node that does not admit the pod offers it nothing, until it does."""
    plain = cluster.put("fixed", ten=1)
    cluster.take(Node(plain.name, taints=(Taint("a", effect="NoSchedule"),), allocatable=plain.allocatable))
    assert cluster.decided(pod("p", "10gb")).assigned.keys() == {"p"}
    cluster.take(plain)
    assert cluster.decided(pod("p", "10gb")).elsewhere.keys() == {"p"}


def test_slices_of_a_partitioned_node_count_where_they_are_of_the_other_kind(cluster: Cluster) -> None:
    """MIG instances that people made on a node under MPS are offered as they are; its own slices are decided upon."""
    cluster.put("mixed", by="mps", ten=1, mig=1)
    found = cluster.decided(pod("p", "10gb"), pod("q", "3g.20gb"))
    assert (set(found.assigned), set(found.elsewhere)) == ({"p"}, {"q"})


def test_all_slices_of_a_pod_have_to_be_on_one_node(cluster: Cluster) -> None:
    """As kube-scheduler binds it to one."""
    cluster.put("one", ten=1)
    cluster.put("two", ten=1)
    assert cluster.decided(pod("p", "10gb", "10gb")).assigned.keys() == {"p"}
    cluster.put("two", ten=2)
    assert cluster.decided(pod("p", "10gb", "10gb")).elsewhere.keys() == {"p"}


def test_a_size_beyond_any_partitioned_gpu_is_not_refused_if_a_node_offers_one(cluster: Cluster) -> None:
    """No partitioned GPU is needed for it."""
    name = "nvidia.com/gpu-80gb"
    cluster.take(Node("large", allocatable={**ROOM, name: 1}))
    assert not cluster.decided(pod("p", "80gb")).refused


def test_a_pod_that_does_not_go_to_an_offered_slice_in_time_gets_one_made(cluster: Cluster) -> None:
    """A fact that is not judged may keep the pod away: it waits no longer than for a slice that was made for it.

    Until the node offers nothing any more, or the pod waits no longer, this is not begun anew; nor does such a pod
    stand in the way of others.
    """
    cluster.put("fixed", ten=1)
    asked = pod("p", "10gb", age=9)
    assert cluster.decided(asked).next_at == NOW + timedelta(seconds=60)
    assert cluster.decided(asked, seconds=59).elsewhere
    late = cluster.decided(asked, pod("q", "10gb"), seconds=60)
    assert (set(late.assigned), set(late.elsewhere)) == ({"p"}, {"q"})
    cluster.elsewhere.forget("p")
    assert cluster.decided(asked, seconds=70).next_at == NOW + timedelta(seconds=130)
    cluster.elsewhere.remove("fixed")
    assert cluster.decided(asked, seconds=80).assigned
    cluster.put("fixed", ten=1)
    assert cluster.decided(asked, seconds=90).next_at == NOW + timedelta(seconds=150)


def test_pods_that_come_and_go_on_a_node_are_counted(cluster: Cluster) -> None:
    """A slice that is freed is offered, and one that is taken is not."""
    cluster.put("fixed", {"ten": 1}, ten=1)
    for free in (True, False):
        cluster.used["fixed"] = Demand({TEN: 0 if free else 1})
        cluster.elsewhere.recount("fixed")
        assert bool(cluster.decided(pod("p", "10gb")).elsewhere) == free


def test_a_pod_that_names_gpus_goes_only_where_one_of_these_has_a_slice(cluster: Cluster) -> None:
    """Whether that is so, the account of the node's GPUs says; kube-scheduler without the extender does not ask."""
    cluster.put("fixed", ten=1)
    asked = pod("p", "10gb", wishes=Wishes(uuids=("GPU-a-0",)))
    cluster.accepts = False
    assert cluster.decided(asked).assigned
    assert cluster.decided(pod("q", "10gb")).elsewhere
    cluster.accepts = True
    assert cluster.decided(asked).elsewhere


def test_slices_kept_for_a_pod_stay_kept(cluster: Cluster) -> None:
    """A slice that another node offers later changes nothing that was decided."""
    cluster.put("fixed", ten=1)
    own = kept("10gb")
    there = node(gpu(0, "10gb"))
    wanted = type(there.wanted)(there.wanted.gpus, {"p": (own,)})
    offered = cluster.elsewhere.search(lambda *_: True, NOW, 60)
    again = [type(there)("a", there.gpus, wanted)]
    found = decide(again, [pod("p", "10gb")], NOW, RoundRules(anywhere, {"p"}, existing_offer=offered))
    assert found.assigned.keys() == {"p"}
    assert not found.changes
