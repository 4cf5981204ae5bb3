"""Tests of `gpushare_plugin.partitioner`: what its modules `known` and `reports` remember, and until when."""

from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gpushare_plugin.kube.collection import Gone
from gpushare_plugin.kube.events.event import Event
from gpushare_plugin.kube.nodes import judged_node
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.ledger.annotations import HAMI_UUIDS
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord, ResourceRecord
from gpushare_plugin.ledger.node_record import encode as encode_record
from gpushare_plugin.observe.metrics.partitioner import PartitionerCounts
from gpushare_plugin.partition.decide import Assigned, Decisions
from gpushare_plugin.partition.taking_back import TakenBack
from gpushare_plugin.partitioner.known import Known
from gpushare_plugin.partitioner.reports import Reports
from gpushare_plugin.slices.wanted import WANTED_SLICES, Wanted, encode
from tests.unit.partition.objects import kept
from tests.unit.partitioner.partitioners import ROOM, record


class Changing(Known):
    """What is known, and how often it changed in a way that matters."""

    def __init__(self) -> None:
        """Begin without changes."""
        self.changes = 0
        super().__init__("binpack", self._count_change)

    def _count_change(self) -> None:
        self.changes += 1


@pytest.fixture
def known() -> Changing:
    """Return what is known of a partitioned node n0, and of one that is not, called plain."""
    found = Changing()
    found.put_node(node("n0"))
    found.put_node(node("plain", annotations={}))
    found.changes = 0
    return found


def node(name: str, version: str = "1", wanted: str | None = None, allocatable: object = ROOM, **more: Any) -> Node:
    """Return a Node whose daemon follows the annotation; `more` is of its metadata."""
    annotations = {GPUS_ANNOTATION: record(name, (40,)), **({} if wanted is None else {WANTED_SLICES: wanted})}
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": version, "annotations": annotations, **more}
    return judged_node(msgspec.convert({"metadata": metadata, "status": {"allocatable": allocatable}}, ApiNode))


def pod(name: str, size: str | None = None, on: str = "", phase: str = "Pending", **more: Any) -> ApiPod:
    """Return a pod that takes a CPU, and asks for a slice if a size is given; `more` is of its metadata."""
    limits = {"cpu": "1", **({f"nvidia.com/gpu-{size}": "1"} if size else {})}
    spec = {"nodeName": on, "containers": [{"name": "main", "resources": {"limits": limits}}]}
    metadata = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": "2026-11-22T12:00:00Z", **more}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, ApiPod)


def test_facts_that_no_decision_depends_on_are_no_change(known: Changing) -> None:
    """A new version of a Node or pod with the same content, a node that is not partitioned, and a pod without slices.

    Clusters change many times a second; rounds must not.
    """
    known.put_node(node("n0", "2"))
    known.put_node(node("plain", "2", annotations={}, labels={"a": "b"}))
    known.put_pod(pod("other"))
    known.put_pod(pod("other", on="n0"))
    known.put_pod(pod("other", on="n0", phase="Running"))
    known.remove_pod(Gone("other", "ns", "other"))
    assert known.changes == 0
    assert known.node("n0").version == "2"


def test_facts_that_decisions_depend_on_are_a_change(known: Changing) -> None:
    """Pods with slices, and while they wait others on partitioned nodes; nodes, their labels and annotations."""
    changes: tuple[Callable[[], None], ...] = (
        lambda: known.put_pod(pod("p", "10gb")),
        lambda: known.put_pod(pod("other", on="n0")),
        lambda: known.remove_pod(Gone("other", "ns", "other")),
        lambda: known.put_pod(pod("p", "10gb", on="n0")),
        lambda: known.put_pod(pod("p", "10gb", on="n0", phase="Succeeded")),
        lambda: known.remove_pod(Gone("p", "ns", "p")),
        lambda: known.put_node(node("n0", "3", labels={"zone": "a"})),
        lambda: known.put_node(node("n0", "4", "{}", labels={"zone": "a"})),
        lambda: known.put_node(node("n0", "5", encode(Wanted({"GPU-n0-0": {}})), labels={"zone": "a"})),
        lambda: known.remove_node(Gone("uid-n0", "", "n0")),
    )
    for number, change in enumerate(changes, start=1):
        before = known.changes
        change()
        # An annotation that cannot be read is as none.
        assert known.changes == before + (number != 8), number


def test_slices_offered_by_nodes_that_are_not_partitioned_are_a_change(known: Changing) -> None:
    """Slices that a node offers which is not partitioned, and, while pods wait, what other pods take there."""
    offered: dict[str, Any] = {"annotations": {}, "allocatable": {**ROOM, "nvidia.com/gpu-10gb": "1"}}
    changes: tuple[tuple[Callable[[], None], bool], ...] = (
        (lambda: known.put_node(node("plain", "2", **offered)), True),
        (lambda: known.put_node(node("plain", "3", **offered)), False),
        (lambda: known.put_pod(pod("other", on="plain")), False),
        (lambda: known.put_pod(pod("p", "10gb")), True),
        (lambda: known.remove_pod(Gone("other", "ns", "other")), True),
        (lambda: known.put_node(node("plain", "4", annotations={})), True),
        (lambda: known.put_pod(pod("other", on="plain")), False),
    )
    for number, (change, matters) in enumerate(changes, start=1):
        before = known.changes
        change()
        assert known.changes == before + matters, number


def test_a_pod_that_names_gpus_is_offered_slices_of_these_only(known: Changing) -> None:
    """A node that is not partitioned, and has a slice on another GPU, offers it nothing."""
    resource = ResourceRecord(name="nvidia.com/gpu-10gb", kind="slices")
    gpu = GpuRecord(index=0, uuid="GPU-fixed-0", memory_mib=40960, mode="mps", resource=resource.name, units=1)
    annotations = {GPUS_ANNOTATION: encode_record(NodeRecord(gpus=(gpu,), resources=(resource,)))}
    known.put_node(node("fixed", annotations=annotations, allocatable={**ROOM, resource.name: "1"}))
    for uuid, there in (("GPU-fixed-0", True), ("GPU-other-0", False)):
        known.put_pod(pod(uuid, "10gb", annotations={HAMI_UUIDS: uuid}))
        (asking,) = (each for each in known.waiting if each.uid == uuid)
        offer = known.rules(datetime.now(UTC), 60, "binpack").existing_offer(asking)
        assert (offer is not None) == there


def test_a_size_that_is_misspelt_matters_once_a_node_is_partitioned(known: Changing) -> None:
    """Without partitioned nodes nobody promised slices, and a size that another plugin offers is one of its own."""
    known.put_pod(pod("p", "10Gi"))
    assert known.changes == 1
    assert [each.uid for each in known.waiting] == ["p"]
    known.remove_node(Gone("uid-n0", "", "n0"))
    assert known.waiting == []
    known.put_node(node("n0"))
    assert [each.uid for each in known.waiting] == ["p"]
    other = {"metadata": {"name": "other"}, "status": {"allocatable": {"nvidia.com/gpu-10Gi": "1"}}}
    known.put_node(judged_node(msgspec.convert(other, ApiNode)))
    assert known.waiting == []
    known.changes = 0
    known.remove_pod(Gone("p", "ns", "p"))
    assert known.changes == 1


def test_a_write_does_not_hide_what_the_watch_has_shown_since(known: Changing) -> None:
    """If a later version arrives before the answer to our write, it counts; or else no write would ever succeed."""
    before, wanted = known.node("n0"), Wanted({"GPU-n0-0": {"10gb": 1}})
    known.put_node(node("n0", "2", encode(wanted)))
    known.put_node(node("n0", "3", encode(wanted), labels={"by": "another"}))
    known.wrote("n0", before, wanted, "2")
    assert known.node("n0").version == "3"
    before = known.node("n0")
    known.wrote("n0", before, Wanted(), "4")
    assert (known.node("n0").version, known.node("n0").wanted) == ("4", Wanted())


def test_the_decision_takes_a_node_as_it_is_now(known: Changing) -> None:
    """What was written, and what the watch shows, counts in the next round; for a new version alone nothing is made."""
    before, wanted = known.nodes[0], Wanted({"GPU-n0-0": {"10gb": 1}})
    known.put_node(node("n0", "2"))
    assert known.nodes[0] is before
    known.wrote("n0", known.node("n0"), wanted, "3")
    assert known.nodes[0].wanted == wanted
    known.put_node(node("n0", "4"))
    assert known.nodes[0].wanted == Wanted()
    known.put_pod(pod("p", "10gb", on="n0"))
    assert known.nodes[0].unplaced == {"10gb": 1}


def test_the_next_version_after_a_conflict_matters_whatever_changed(known: Changing) -> None:
    """The node is decided again once the watch shows the version that was in the way, or at once if it has."""
    before = known.node("n0")
    known.conflicted("n0", before)
    assert known.changes == 0
    known.put_node(node("n0", "2"))
    assert known.changes == 1
    known.put_node(node("n0", "3"))
    assert known.changes == 1
    known.conflicted("n0", before)
    assert known.changes == 2


def test_nodes_and_pods_that_are_gone_are_forgotten(known: Changing, log: list[MutableMapping[str, Any]]) -> None:
    """Of nodes and pods that were there once, nothing is kept, and a new node is judged for itself."""
    for _ in range(2):
        known.put_node(node("n1", wanted="{}"))
        known.put_node(node("n1", "2", wanted="{}"))
        known.put_pod(pod("other", on="n1"))
        known.conflicted("n1", known.node("n1"))
        known.remove_node(Gone("uid-n1", "", "n1"))
        known.remove_pod(Gone("other", "ns", "other"))
    assert [each["event"] for each in log] == ["node_annotation_unreadable"] * 2
    held = vars(known) | vars(vars(known)["_scheduling"])
    sizes = {name: len(value) for name, value in held.items() if hasattr(value, "__len__")}
    assert {name for name, size in sizes.items() if size} <= {"_nodes", "nodes"}
    known.put_pod(pod("p", "10gb"))
    waiting = known.waiting[0]
    runs_on = known.rules(datetime.now(UTC), 60, "binpack").runs_on
    assert runs_on(waiting, "n0", ()) is None
    known.remove_pod(Gone("p", "ns", "p"))
    assert runs_on(waiting, "n0", (waiting,)) == "the pod is gone"
    known.put_pod(pod("p", "10gb"))
    assert runs_on(waiting, "n1", ()) == "the node is gone"


def counted(counts: PartitionerCounts) -> dict[tuple[str, ...], float]:
    """Return what was counted at all, by the name of the sample and the values of its labels."""
    samples = [sample for each in counts.objects.values() for family in each.collect() for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples if sample.value}


def test_swapped_slices_are_no_event(known: Changing) -> None:
    """A pod whose slice another one took gets an idle one: nothing is made, and no Event or count says otherwise.

    Where the idle one could not be written, it has none yet: that is said.
    """
    told: list[Event] = []
    counts = PartitionerCounts()
    reports = Reports(told.append, counts)
    assigned = Assigned("p", "ns/p", datetime.now(UTC), "n0", (kept("10gb", name="n0"),), (0,), ("idle",))
    taken = TakenBack(
        "p", "ns/p", "n1", (kept("10gb", name="n1"),), ("GPU 0",), "why", lost_to_others=True, swapped=True
    )
    reports.report(Decisions({}, {"p": assigned}, {}, (taken,), None), {"n0", "n1"}, known)
    assert (told, counted(counts)) == ([], {})
    reports.report(Decisions({}, {"p": assigned}, {}, (taken,), None), {"n1"}, known)
    assert [each.reason for each in told] == ["SliceTakenBack"]
    assert counted(counts) == {("gpushare_partitioner_slices_taken_back_total", "10gb"): 1}


def test_a_pod_that_goes_while_its_slice_is_written_breaks_nothing(known: Changing) -> None:
    """What was written for it is reported; nothing waits for it to take the slice."""
    told: list[Event] = []
    reports = Reports(told.append, PartitionerCounts())
    assigned = Assigned("p", "ns/p", datetime.now(UTC), "n0", (kept("10gb", name="n0"),), (0,), ("free",))
    reports.report(Decisions({}, {"p": assigned}, {}, (), None), {"n0"}, known)
    assert [each.message for each in told] == ["slice nvidia.com/gpu-10gb is being made on GPU 0 of n0"]
