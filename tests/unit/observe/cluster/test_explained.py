"""Tests of `gpushare_plugin.observe.cluster.explanation` and `explained`: what is said of a pod, line by line."""

import json
import re
from textwrap import dedent

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.effect import IN_EFFECT, not_in_effect
from gpushare_plugin.ledger.annotations import write_limits
from gpushare_plugin.ledger.node import unreadable_node
from gpushare_plugin.ledger.node_record import ResourceRecord
from gpushare_plugin.ledger.packed import NodeLoss
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.quantity import units
from gpushare_plugin.ledger.request import ContainerRequest, PodRequest
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.observe.cluster.explained import lines
from gpushare_plugin.observe.cluster.explanation import Explanation, Told, explain, explain_in_steps
from gpushare_plugin.observe.cluster.report import CORDONS_NOT_READ
from gpushare_plugin.observe.parts import encode
from tests.unit.ledger.objects import container, memory, pod, request, uuid
from tests.unit.observe.cluster.clusters import Cluster, gpu, promised, recorded

DEFAULT = ExtenderStanding("spread", "the default of the scheduler extender", None)


def explained(cluster: Cluster, asked: PodRequest | Pod, told: Told | None = None) -> Explanation:
    """Explain a pod, a pending one where only its request is given."""
    found = asked if isinstance(asked, Pod) else pod(asked, uid="train")
    return explain(cluster.account, found, told or Told({}, extender=DEFAULT))


def text(explanation: Explanation) -> str:
    """Return what is printed."""
    return "\n".join(lines(explanation)) + "\n"


def full() -> Cluster:
    """Return a cluster that has 14 GiB free on two GPUs, 7 on each, and a node without GPUs."""
    cluster = Cluster()
    cluster.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1)))
    cluster.plain("cpu-1", 0, 0)
    cluster.pod("a", 8, "gpu-1", on=0)
    cluster.pod("b", 8, "gpu-1", on=1)
    return cluster


def test_a_pending_pod_is_told_what_is_missing_and_what_would_help() -> None:
    """Node by node and GPU by GPU: what is free, how much is missing, who has it, who would have to end."""
    assert text(explained(full(), memory(10))) == dedent("""\
        Pod default/train waits for a node
        Asks for: 10 aliyun.com/gpu-mem
        Placement policy: spread, chosen by the default of the scheduler extender

        Does not fit on 2 of 2 nodes:
          1 node: no GPU has 10 units of aliyun.com/gpu-mem free; 3 missing: gpu-1
          1 node: the node does not offer aliyun.com/gpu-mem; 10 missing: cpu-1
          Together, the GPUs of gpu-1 have room for the pod; no single GPU has. Autoscalers count sums:
          cluster-autoscaler adds no node, and logs that pods marked as unschedulable can be scheduled;
          Karpenter says Nominated. A smaller request, or room on one GPU, helps (docs/scheduling.md, Autoscalers).

        gpu-1: needs 10 units of aliyun.com/gpu-mem on one GPU, 3 missing
          GPU   FREE/TOTAL  MISSING  WHY
          GPU0  7/15        3        held by default/a (8)
          GPU1  7/15        3        held by default/b (8)
          Would fit if these pods ended: default/a
          Would fit if it asked for 7 units of aliyun.com/gpu-mem at most
        """)


@pytest.mark.parametrize(
    ("asked", "sleeps"),
    [
        (memory(14), True),
        (memory(15), False),
        (memory(14, gpus="2"), None),
        (memory(16, gpus="2"), False),
    ],
    ids=["all of the sum", "more than the sum", "fits one by one", "several GPUs"],
)
def test_an_autoscaler_sleeps_where_the_sum_has_room(asked: PodRequest, sleeps: bool | None) -> None:  # noqa: FBT001 - a case
    """The sum of a node is all that autoscalers see: what pods hold counts, and what is free of each GPU does not."""
    explanation = explained(full(), asked)
    (node,) = (each for each in explanation.nodes if each.node == "gpu-1")
    assert node.fits_sum is bool(sleeps)
    assert ("  Together, the GPUs of gpu-1 have room" in text(explanation)) is bool(sleeps)
    assert node.fits is (sleeps is None)


def test_a_pod_that_wants_what_no_gpu_is_is_told_which_models_there_are() -> None:
    """Not that a smaller request helps, nor that units are missing: no GPU would do, however much is free."""
    said = text(explained(full(), memory(2, annotations={"nvidia.com/use-gputype": "H200", "x": "y"})))
    wanted = "annotations of the pod want (nvidia.com/use-gputype: h200); the models here: NVIDIA A100-SXM4-40GB\n"
    assert f"No GPU of this cluster is one that the {wanted}" in said
    assert "  GPU0  -/15        -        NVIDIA A100-SXM4-40GB, the pod wants h200; held by default/a (8)\n" in said
    assert ("Together" in said, "smaller request" in said) == (False, False)
    assert "annotations of the pod want" not in text(explained(full(), memory(20, annotations=A100)))


A100 = {"nvidia.com/use-gputype": "A100"}


def test_nodes_that_count_for_no_autoscaler_keep_none_asleep() -> None:
    """A cordoned node has room for nobody, what is held on a GPU that is out counts, and a pod that fits is no case."""
    cordoned, out, fitting = full(), Cluster(), full()
    cordoned.add(cordoned.account.nodes["gpu-1"], unschedulable=True)
    out.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1), gpu("gpu-1", 2, healthy=False, reason="XID 79")))
    out.pod("a", 8, "gpu-1", on=0)
    out.pod("b", 8, "gpu-1", on=1)
    out.pod("c", 5, "gpu-1", on=2)
    fitting.node("gpu-2", recorded(gpu("gpu-2", 0)))
    assert [cluster for cluster in (cordoned, out, fitting) if "Together" in text(explained(cluster, memory(10)))] == []


def test_a_pod_that_fits_is_told_where() -> None:
    """The GPU it would get on each node, and that the scheduler must have another reason."""
    said = text(explained(full(), memory(7)))
    assert "Fits on 1 of 2 nodes, by its GPUs:\n  gpu-1: 7 aliyun.com/gpu-mem on GPU0 (score 9)\n" in said
    assert "kubectl describe pod" in said


def test_what_later_pods_lose_is_told_with_the_score() -> None:
    """Where the policy `packing` decides, its score counts, and nodes that lose less stand first."""
    cluster = full()
    cluster.node("gpu-3", recorded(gpu("gpu-3", 0)))
    told = Told({}, losses={"gpu-1": NodeLoss(0.456, 3), "gpu-3": NodeLoss(0.123, 10)})
    said = text(explained(cluster, memory(7), told))
    first, second = (line.strip() for line in said.splitlines() if "(score" in line)
    assert first == "gpu-3: 7 aliyun.com/gpu-mem on GPU0 (score 10, loses 0.12 GPUs)"
    assert second == "gpu-1: 7 aliyun.com/gpu-mem on GPU0 (score 3, loses 0.46 GPUs)"


def test_a_pod_that_waits_for_victims_comes_first() -> None:
    """As for the extender: a more important pod has the GPU already that is being emptied for it."""
    cluster = full()
    cluster.account.put_pod(pod(memory(8), "gpu-1", "a", on=uuid(0, "gpu-1"), ending=True))
    cluster.account.put_pod(pod(memory(15), uid="important", priority=9, nominated="gpu-1"))
    said = text(explained(cluster, memory(7)))
    assert "  gpu-1: 7 aliyun.com/gpu-mem on GPU1 (score " in said
    cluster.pod("c", 1, "gpu-1", on=1)
    said = text(explained(cluster, memory(7)))
    assert "  GPU0  0/15        7        held by default/a (8), default/important (15)\n" in said


def test_conditions_of_kubernetes_stand_first() -> None:
    """Gates, conditions, wishes that are not understood, and who schedules the pod."""
    asked = memory(3, annotations={"gpushare/placement": "pack"})
    said = text(explained(full(), asked, Told({}, "gpushare-scheduler", ("The scheduler says: no nodes",), DEFAULT)))
    assert said.splitlines()[2:6] == [
        (
            "Not understood, and ignored: annotation gpushare/placement: 'pack' found, "
            "binpack or spread or packing expected"
        ),
        "Placement policy: spread, chosen by the default of the scheduler extender",
        "Scheduler: gpushare-scheduler",
        "The scheduler says: no nodes",
    ]


def test_a_name_that_nobody_offers_has_a_nearest_one() -> None:
    """A resource that no node has is named with its amount, and the one that was probably meant."""
    asked = request(container("main"))
    asked = PodRequest((asked.containers[0].__class__("main", "app", (("aliyun.com/gpu-memory", 5),)),))
    said = text(explained(full(), asked))
    assert "No node offers aliyun.com/gpu-memory: all 5 units are missing; did you mean aliyun.com/gpu-mem?" in said
    assert "asks for nothing that gpushare serves" in said


def test_a_pod_that_fits_but_for_another_resource_is_not_told_that_it_fits() -> None:
    """What no node offers keeps it waiting, whatever GPUs are free."""
    asked = PodRequest((ContainerRequest("main", "app", (("aliyun.com/gpu-mem", 5), ("nvidia.com/gpus", 1))),))
    said = text(explained(full(), asked))
    assert "No node offers nvidia.com/gpus: all 1 units are missing\n" in said
    assert "Would fit, but for what no node offers, on 1 of 2 nodes, by its GPUs:\n" in said
    assert "the scheduler has another reason" not in said


def test_a_request_in_bytes_is_told_that_units_are_counted() -> None:
    """`5Gi` is a quantity that Kubernetes takes, and 5,368,709,120 units."""
    said = text(explained(full(), memory(units("5Gi"))))
    assert (
        "has 5368709120 units of aliyun.com/gpu-mem free (5Gi = 5368709120 units: units are counted, not bytes" in said
    )
    assert "; ask for 5); 5368709113 missing: gpu-1\n" in said
    assert "units are counted" not in text(explained(full(), memory(5000)))


def test_thousands_of_nodes_are_summed_up() -> None:
    """Nodes with the same cause are counted; those that lack least are shown GPU by GPU, and JSON has all."""
    cluster = Cluster()
    for number in range(30):
        name = f"n{number:02}"
        cluster.node(name, recorded(gpu(name, 0)))
        cluster.pod(f"p{number}", 6 + number % 5, name, on=0)
    explanation = explained(cluster, memory(12))
    said = text(explanation)
    assert "  30 nodes: no GPU has 12 units of aliyun.com/gpu-mem free; at least 3 missing: n00, n05, n10, " in said
    assert re.findall(
        r"^(n\d\d): needs 12 units of aliyun.com/gpu-mem on one GPU, (\d) missing$", said, re.MULTILINE
    ) == [
        ("n00", "3"),
        ("n05", "3"),
        ("n10", "3"),
    ]
    assert "and 25 more" in said
    assert len(json.loads(encode(explanation))["nodes"]) == 30


SICK = gpu("gpu-1", 0, healthy=False, reason="XID 79")


@pytest.mark.parametrize(
    ("asked", "number"),
    [
        (memory(10, gpus="3"), "cannot be split evenly over 3 GPUs: 1 are left over, 2 more could be split"),
        (memory(10, gpus="0"), "'0' found, a number of GPUs from 1 to 256 expected"),
        (memory(12, gpus="4"), "needs 3 units of aliyun.com/gpu-mem on each of 4 GPUs, 9 missing"),
        (memory(16), "needs 16 units of aliyun.com/gpu-mem on one GPU, 1 missing"),
        (request(container("main", gpu=1)), "needs 1 units of nvidia.com/gpu, 1 missing"),
        (request(container("main", cores=30)), "does not offer aliyun.com/gpu-core.percentage; 30 missing"),
        (memory(5, annotations={"nvidia.com/use-gputype": "H100"}), "the pod wants h100"),
    ],
    ids=["uneven", "no number", "several", "too large", "whole", "cores", "model"],
)
def test_every_refusal_names_the_number_that_is_missing(asked: PodRequest, number: str) -> None:
    """Whatever the cause, the words have the numbers."""
    cluster = Cluster()
    whole = ResourceRecord(name="nvidia.com/gpu", kind="gpus")
    used = gpu("gpu-1", 1, 1, resource="nvidia.com/gpu", unit_mib=0, healthy=False, reason="XID 79")
    kinds = (ResourceRecord(name="aliyun.com/gpu-mem", kind="memory", policy="binpack"), whole)
    cluster.node("gpu-1", recorded(gpu("gpu-1", 0), used, kinds=kinds))
    assert number in text(explained(cluster, asked))


def test_a_share_on_several_gpus_under_mps_is_explained() -> None:
    """The cause and what to do are said of the node that has room otherwise."""
    cluster = Cluster()
    kinds = (ResourceRecord(name="aliyun.com/gpu-mem", kind="memory", policy="binpack", single_gpu=True),)
    cluster.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1), kinds=kinds))
    said = text(explained(cluster, memory(4, gpus="2")))
    assert "MPS does not limit a process that sees fewer GPUs than its share has" in said
    assert "sharing.memory.resources[].allowMultiGPUShares: true" in said


def test_a_node_whose_gpus_are_out_says_so() -> None:
    """No pod that ends would help there; the state of node and GPU is named."""
    cluster = Cluster()
    cluster.node("gpu-1", recorded(SICK), unschedulable=True, ready=False)
    said = text(explained(cluster, memory(5)))
    assert "on one GPU, 5 missing; the node is not ready, the node is cordoned" in said
    assert "  GPU0  0/15        5        unhealthy: XID 79\n" in said
    assert said.endswith("  Would fit once a GPU of this node can be used again\n")


def test_a_pod_that_wants_other_gpus_is_told_so() -> None:
    """A model that the pod does not want is the cause, not a lack of units; it helps nothing if a GPU recovers."""
    cluster = full()
    said = text(explained(cluster, memory(2, annotations={"nvidia.com/use-gputype": "H100"})))
    cause = "no GPU that the pod wants: NVIDIA A100-SXM4-40GB, the pod wants h100"
    assert f"  1 node: {cause}: gpu-1\n" in said
    assert f"\ngpu-1: {cause}\n" in said
    assert said.endswith("  The pod wants none of the GPUs of this node\n")


def test_cordons_that_are_not_read_are_named_where_they_can_matter() -> None:
    """The scheduler extender may know of GPUs that a ConfigMap cordons on a node of Aliyun's plugin; this does not."""
    cluster = full()
    assert CORDONS_NOT_READ not in text(explained(cluster, memory(5)))
    cluster.plain("old", 30, 2)
    assert text(explained(cluster, memory(5))).endswith(f"\n\n{CORDONS_NOT_READ}\n")


def test_units_on_unknown_gpus_are_named() -> None:
    """What nothing places counts against each GPU, so each looks fuller than the pods it is held by."""
    cluster = Cluster()
    cluster.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1)))
    cluster.pod("a", 7, "gpu-1")
    said = text(explained(cluster, memory(10)))
    assert "  GPU1  8/15        2        -\n" in said
    assert "  7 units are held on unknown GPUs and count against each GPU\n" in said


def test_a_node_whose_record_cannot_be_read_is_no_node_without_gpus() -> None:
    """Nobody knows what it offers: the verdict says why."""
    cluster = Cluster()
    cluster.add(unreadable_node("gpu-1", "annotation gpushare/gpus: version 2 found"))
    cluster.plain("cpu-1", 0, 0)
    said = text(explained(cluster, memory(5)))
    why = "the record of the node cannot be read: annotation gpushare/gpus: version 2 found"
    assert f"  1 node: {why}: gpu-1\n" in said
    assert "  1 node: the node does not offer aliyun.com/gpu-mem; 5 missing: cpu-1\n" in said


def test_a_resource_that_counts_gpus_is_never_the_nearest_name() -> None:
    """`aliyun.com/gpu-count` is there for tools to read; no pod requests it."""
    cluster = Cluster()
    cluster.plain("ali-1", 30, 2, allocatable={"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 30})
    said = text(explained(cluster, request(container("main", cores=30))))
    assert "No node offers aliyun.com/gpu-core.percentage: all 30 units are missing\n" in said


def test_annotations_of_a_placed_pod_that_cannot_be_read_are_named() -> None:
    """A promise that nobody can read is none, but the extender has bound the pod; the allocation is named, too."""
    cluster = full()
    found = cluster.pod("c", 1, "gpu-1")
    said = text(explained(cluster, found, Told({"gpushare/promise": "{", "gpushare/allocation": "no"})))
    assert "Promise: cannot be read, so it does not count: annotation gpushare/promise" in said
    assert "Not understood, and ignored: annotation gpushare/allocation" in said
    assert "bound without" not in said


def test_a_placed_pod_is_told_whether_its_limits_are_in_effect() -> None:
    """Each container has a line for each GPU, by what the node's daemon wrote; what cannot be read is named."""
    cluster = full()
    found = cluster.pod("c", 1, "gpu-1", on=0)
    effects = {"main": {uuid(0, "gpu-1"): IN_EFFECT, "GPU-x": not_in_effect("it escaped")}, "": {"GPU-x": IN_EFFECT}}
    said = text(explained(cluster, found, Told({"gpushare/limits": write_limits(effects)})))
    for line in (
        "Limit of container main on GPU0: in effect",
        "Limit of container main on GPU-x: not in effect: it escaped",
        "Limit of its containers on GPU-x: in effect",
    ):
        assert line in said.splitlines()
    unread = text(explained(cluster, found, Told({"gpushare/limits": "no", "gpushare/allocation": "no"})))
    assert "Not understood, and ignored: annotation gpushare/limits" in unread
    assert "Not understood, and ignored: annotation gpushare/allocation" in unread


def test_a_placed_pod_is_told_why_it_is_there() -> None:
    """Its policy and who chose it, the promise with its time, and where the node says that it is."""
    cluster = Cluster()
    node = cluster.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1)), "spread")
    found = cluster.pod("a", 5, "gpu-1", on=1, promise=1)
    told = Told(promised(found.request, node, uuid(1, "gpu-1")), "default-scheduler")
    assert text(explained(cluster, found, told)) == dedent("""\
        Pod default/a is on node gpu-1
        Asks for: 5 aliyun.com/gpu-mem
        Placement policy: spread, chosen by label ack.node.gpu.placement of the node
        Scheduler: default-scheduler
        Promise: made by the scheduler extender at 2026-01-01T00:00:00+00:00

        aliyun.com/gpu-mem: 5 GiB
          GPU1 (GPU-gpu-1-1): 5 GiB, says the node
        """)


def test_drift_shows_both_sides() -> None:
    """What was promised, what the node allocated, and which of both counts."""
    cluster = Cluster()
    node = cluster.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1)))
    found = cluster.pod("a", 5, "gpu-1", on=1, promise=0)
    said = text(explained(cluster, found, Told(promised(found.request, node, uuid(0, "gpu-1")))))
    assert said.splitlines()[-4:] == [
        "  GPU1 (GPU-gpu-1-1): 5 GiB, says the node",
        "  Promised: main: 5 on GPU0 (GPU-gpu-1-0)",
        "  Allocated: main: 5 on GPU1 (GPU-gpu-1-1)",
        "  Drift: the node gave it other units than were promised; what the node says counts",
    ]


def test_a_pod_that_nothing_places_is_on_an_unknown_gpu() -> None:
    """Here the pod was bound without the extender; the node may still say where it is."""
    cluster = full()
    said = text(explained(cluster, cluster.pod("c", 2, "gpu-1")))
    assert "Promise: none; it was bound without the scheduler extender of gpushare" in said
    assert "  2 GiB on unknown GPUs: nothing says where; they count against every GPU" in said


def test_a_promise_for_another_node_does_not_count() -> None:
    """The promise is named, so that nobody looks for the pod there."""
    cluster = full()
    found = cluster.pod("c", 2, "gpu-1")
    other = cluster.account.account_of("gpu-1").node
    texts = {
        key: value.replace('"node":"gpu-1"', '"node":"gpu-9"')
        for key, value in promised(found.request, other, uuid(0, "gpu-1")).items()
    }
    assert "Promise: for node gpu-9, so it does not count here" in text(explained(cluster, found, Told(texts)))


def test_pods_that_hold_nothing_are_told_so_in_one_line() -> None:
    """A pod that has ended, one whose node is gone, and one that asks for no GPU."""
    cluster = full()
    ended = pod(memory(5), "gpu-1", "done", ended=True)
    assert text(explained(cluster, ended)).startswith("Pod default/done has ended: it holds no GPU\n")
    lost = pod(memory(5), "gone", "lost")
    assert text(explained(cluster, lost)).endswith("Node gone offers none of these resources now.\n")
    assert "No node offers" not in text(explained(Cluster(), lost)), "of a placed pod, only its node is read"
    assert "Asks for: no extended resource" in text(explained(cluster, request(container("main"))))
    assert "The cluster has no node." in text(explained(Cluster(), memory(5)))


def test_a_pod_that_waits_for_a_slice_is_told_what_is_being_made() -> None:
    """Nodes have a verdict only on what some node offers, which this slice is not."""
    told = Told({}, extender=DEFAULT, slices=("slice nvidia.com/gpu-10gb is kept for the pod on GPU 0 of gpu-1",))
    found = explained(full(), request(container("main", slice=1)), told)
    assert (found.state, found.not_offered[0].nearest) == ("pending", None)
    assert text(found).splitlines() == [
        "Pod default/train waits for a node",
        "Asks for: 1 nvidia.com/gpu-10gb",
        "No node offers nvidia.com/gpu-10gb now",
        "Placement policy: spread, chosen by the default of the scheduler extender",
        "",
        "Automatic partitioning:",
        "  slice nvidia.com/gpu-10gb is kept for the pod on GPU 0 of gpu-1",
    ]
    assert json.loads(encode(found))["slices"] == list(told.slices)
    both = text(explained(full(), request(container("main", slice=1, memory=7)), told))
    assert "Would fit, but for what no node offers, on 1 of 2 nodes, by its GPUs:\n  gpu-1: 7 aliyun" in both


def test_a_pod_that_the_extender_did_not_place_has_no_policy_of_it() -> None:
    """Whoever bound it knew nothing of the extender's policies, and the node's own is for choosing a GPU there."""
    cluster = full()
    found = explained(cluster, cluster.pod("c", 2, "gpu-1", on=0), Told({}, extender=DEFAULT))
    assert (found.policy, found.policy_source) == (None, None)
    assert "Placement policy" not in text(found)


def test_the_config_of_a_node_can_name_the_policy() -> None:
    """After the pod and the node's label."""
    cluster = Cluster()
    record = replace(recorded(gpu("gpu-1", 0), gpu("gpu-1", 1)), policy="spread")
    for label, source in ((None, "the config of the node"), ("binpack", "label ack.node.gpu.placement of the node")):
        node = cluster.node("gpu-1", record, label)
        found = cluster.pod("a", 5, "gpu-1", on=1, promise=1)
        said = text(explained(cluster, found, Told(promised(found.request, node, uuid(1, "gpu-1")))))
        assert f"Placement policy: {label or 'spread'}, chosen by {source}\n" in said


@pytest.mark.parametrize(
    ("asked", "installed", "means"),
    [
        (memory(2, gpus="2"), False, "only an extender gives a pod parts of 2 GPUs"),
        (
            memory(2, annotations={"nvidia.com/use-gputype": "A100"}),
            False,
            "only an extender heeds which GPUs it wants",
        ),
        (memory(2), True, "a kube-scheduler that asks it leaves the pod pending"),
        (memory(2), False, None),
    ],
)
def test_a_pod_that_waits_for_an_extender_is_told_that_none_runs(
    asked: PodRequest, means: str | None, *, installed: bool
) -> None:
    """A pod that needs one, and where one was installed every pod with a share, with what to do."""
    standing = ExtenderStanding(stopped="nobody holds the Lease kube-system/gpushare-extender", installed=installed)
    said = text(explained(full(), asked, Told({}, extender=standing)))
    assert ("No scheduler extender runs" in said) is (means is not None)
    if means is not None:
        assert f"No scheduler extender runs: nobody holds the Lease kube-system/gpushare-extender; {means}. " in said
        assert "scheduler.enabled of the chart runs one" in said
    running = text(explained(full(), asked, Told({}, extender=replace(standing, stopped=None))))
    assert "No scheduler extender runs" not in running


def test_kube_scheduler_may_not_have_asked_about_one_of_many_nodes() -> None:
    """kube-scheduler looks at all of 100 nodes, and at a sample of more; here one has room."""
    cluster = full()
    for number in range(98):
        cluster.plain(f"node-{number}", 0, 0)
    assert "kube-scheduler has not asked" not in text(explained(cluster, memory(7)))
    cluster.plain("one-more", 0, 0)
    assert (
        "  Or kube-scheduler has not asked about it: of so many nodes it asks about a sample, unless its "
        "configuration has percentageOfNodesToScore: 100.\n"
    ) in text(explained(cluster, memory(7)))
    assert "kube-scheduler has not asked" not in text(explained(cluster, memory(11)))


def test_an_account_may_change_while_an_explanation_is_made_in_steps() -> None:
    """A node that is gone, or that a pod has filled since the last step, is left out: no step fails."""
    cluster = Cluster()
    for number in range(12):
        cluster.node(f"n{number:02}", recorded(gpu(f"n{number:02}", 0)))
        cluster.pod(f"p{number}", 10 if number % 2 else 1, f"n{number:02}", on=0)
    steps = explain_in_steps(cluster.account, pod(memory(8), None, "asked"), Told({}))
    assert next(steps) is None
    for number in (2, 4):
        cluster.pod(f"later-{number}", 10, f"n{number:02}", on=0)
    for number in (6, 7, 9):
        cluster.account.remove_node(f"n{number:02}")
    (found,) = filter(None, steps)
    assert [each.node for each in found.nodes if each.fits] == ["n00", "n08", "n10"]
    assert {"n01", "n03", "n05"} <= {each.node for each in found.nodes if not each.fits}
