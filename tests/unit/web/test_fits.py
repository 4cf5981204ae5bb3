"""What fits of a request: the answers equal those of the ledger, and the count that of placing pod after pod."""

import asyncio
import html

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube.pods import judged_pod
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.node_record import record
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.ledger.taint import Taint
from gpushare_plugin.ledger.verdicts import Fit
from gpushare_plugin.partitioner.outlook import JudgedOverview, Partitioners
from gpushare_plugin.web.fits import MOST_COUNTED, BestPlace, Fits, answer, short_pod
from gpushare_plugin.web.fits_page import FitsPage
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.short_form import parse
from gpushare_plugin.web.standing import ClusterStanding
from tests.unit.claims.node import DRIVER, NODE
from tests.unit.ledger.objects import account, memory, memory_node, pod, uuid
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded
from tests.unit.observe.cluster.test_by_claim import held, of, shared
from tests.unit.web.test_random_cluster import Words
from tests.unit.web.test_waiting import partitioned_node


def answered(made: ClusterAccount, asked: str) -> Fits:
    """Return what fits of a short request."""
    return asyncio.run(answer(made, judged_pod(short_pod(parse(asked), made))))


def by_hand(made: ClusterAccount, asked: Pod) -> int:
    """Return how many pods an extender could place one after another, by promising each to the best node."""
    for count in range(MOST_COUNTED):
        verdicts = made.fits_pod(asked, list(made.nodes))
        fitting = {name: verdicts[name].score for name in made.nodes if isinstance(verdicts[name], Fit)}
        if not fitting:
            return count
        best = min(fitting, key=lambda name: (-fitting[name], name))
        made.reserve(replace(asked, uid=f"copy-{count}", name=f"copy-{count}"), best)
    return MOST_COUNTED


@st.composite
def clusters(draw: st.DrawFn) -> list[tuple[Node, list[Pod]]]:
    """Return a few nodes with pods on their GPUs."""
    found = []
    for name in [f"n{index}" for index in range(draw(st.integers(1, 3)))]:
        sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
        node = memory_node(*sizes, name=name, policy=draw(st.sampled_from([None, "spread", "binpack"])))
        held = [draw(st.integers(0, size)) for size in sizes]
        pods = [pod(memory(units), name, f"{name}-{i}", on=uuid(i, name)) for i, units in enumerate(held) if units]
        found.append((node, pods))
    return found


@given(clusters(), st.integers(1, 14), st.integers(1, 2))
@settings(max_examples=60)
def test_the_count_is_that_of_placing_pod_after_pod(found: list[tuple[Node, list[Pod]]], units: int, gpus: int) -> None:
    """Each further pod goes to the best node, until none fits; the account stays as it is."""

    def made() -> ClusterAccount:
        return account(*[node for node, _ in found], pods=tuple(each for _, pods in found for each in pods))

    shown = made()
    asked = pod(memory(units, gpus=str(gpus)), None, "asked")
    before = {name: shown.account_of(name).resources for name in shown.nodes}
    result = asyncio.run(answer(shown, asked))
    assert result.count == by_hand(made(), asked)
    assert (result.where is None) == (result.count == 0)
    assert {name: shown.account_of(name).resources for name in shown.nodes} == before


def test_a_request_goes_where_the_ledger_puts_it() -> None:
    """Node, GPU, units and model; the causes are those of `explain`, and the pieces tell what fragments cost."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1)))
    cluster.node("b", recorded(gpu("b", 0, product="NVIDIA L4")))
    cluster.pod("held", 10, "a", on=0)
    found = answered(cluster.account, "8 GiB, A100")
    assert found.where == BestPlace(
        "a", found.where.score if found.where else 0, (("aliyun.com/gpu-mem", 8, "1", "NVIDIA A100-SXM4-40GB"),), 0
    )
    assert (found.count, found.fitting, found.nodes) == (1, 1, 2)
    assert [(each.nodes, each.names) for each in found.causes] == [(1, "b")]
    assert found.causes[0].why == "no GPU that the pod wants: NVIDIA L4, the pod wants a100"
    (piece,) = found.pieces
    assert (piece.model, piece.gpus, piece.free, piece.largest, piece.where) == (
        "NVIDIA A100-SXM4-40GB",
        2,
        20,
        15,
        "a GPU 1",
    )
    assert (piece.small, piece.percent) == (5, 25)


def test_nodes_that_take_no_pods_are_left_out() -> None:
    """Cordoned, not ready, and tainted by Kubernetes; a taint that people set is tolerated in the short form."""
    cluster = Cluster()
    cluster.node("cordoned", recorded(gpu("c", 0)), unschedulable=True)
    cluster.node("down", recorded(gpu("d", 0)), ready=False)
    cluster.node(
        "pressed", recorded(gpu("p", 0)), taints=(Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule"),)
    )
    cluster.node("tainted", recorded(gpu("t", 0)), taints=(Taint("nvidia.com/gpu", "", "NoSchedule"),))
    found = answered(cluster.account, "8 GiB")
    assert (found.where.node if found.where else None, found.count) == ("tainted", 1)
    assert {each.names: each.why for each in found.causes} == {
        "cordoned": "the node is cordoned",
        "down": "the node is not ready",
        "pressed": "not tolerated: taint node.kubernetes.io/disk-pressure:NoSchedule",
    }


def test_the_count_is_bounded() -> None:
    """A page tells `at least` of more."""
    cluster = Cluster()
    cluster.node("a", recorded(*[gpu("a", index, 400) for index in range(3)]))
    assert answered(cluster.account, "1 GiB").count == MOST_COUNTED


async def test_the_place_is_that_of_the_policy_of_the_cluster() -> None:
    """The extender's default, else an assumed one; a chosen policy, and one that a manifest names, go before both."""
    picture = Picture()
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1)))
    cluster.pod("held", 3, "a", on=0)
    picture.refresh(cluster.account, ClusterClaims())
    page = FitsPage(picture, JudgedOverview)

    async def told(placement: str = "") -> tuple[str, str]:
        words = Words(await page.short("2 GiB", placement)).found
        (policy,) = (each for each in words if each.startswith("Placement policy: "))
        return policy.removeprefix("Placement policy: "), next(each for each in words if each.startswith("GPU "))

    assert await told() == ("binpack, assumed: the scheduler extender was not asked", "GPU 0")
    assert await told("spread") == ("spread, chosen here", "GPU 1")
    assert (await told("sideways"))[1] == "GPU 0"
    picture.stand(ClusterStanding(ExtenderStanding("spread", "the Lease", None)))
    assert await told() == ("spread, chosen by the Lease", "GPU 1")
    assert await told("binpack") == ("binpack, chosen here", "GPU 0")
    named = (
        "{kind: Pod, metadata: {annotations: {gpushare/placement: binpack}}, "
        "spec: {containers: [{resources: {limits: {aliyun.com/gpu-mem: 2}}}]}}"
    )
    assert "Placement policy: binpack, chosen by the pod" in await page.manifest(named)
    assert "Placement policy: spread, chosen here" in await page.manifest(named, "spread")
    cluster.node("b", recorded(gpu("b", 0)), policy="binpack")
    picture.refresh(cluster.account, ClusterClaims())
    assert "chosen by the Lease; 1 node names a policy of its own" in await page.short("2 GiB")


async def test_what_is_by_claim_is_told_beside_the_answer() -> None:
    """GPUs that pods get by claim only are counted apart, and the page does not judge the claims of a manifest."""
    node, (first,) = shared("10Gi")
    made, picture = Cluster(), Picture()
    told = record(Snapshot(node.inventory, node.plan.resources, by_claim=node.plan.by_claim))
    made.node(NODE, told)
    picture.refresh(made.account, of(node, held(first)))
    page = FitsPage(picture, JudgedOverview)
    words = Words(await page.short("5 GiB")).found
    table = words[words.index("Free pieces of GPUs that pods get by ResourceClaim only, which do not count above") :]
    assert table[7:12] == ["NVIDIA A100-SXM4-40GB", DRIVER, "2", "70 GiB", "40 GiB on node GPU 1"]
    assert "which do not count above" not in await page.short("5 GiB, H100")
    claiming = "{kind: Pod, spec: {containers: [{name: a}], resourceClaims: [{name: gpu, resourceClaimName: train}]}}"
    text = await page.manifest(claiming)
    assert "The pod has ResourceClaims (train), of which this page does not judge" in text
    assert "gpushare does not decide where the pod goes" not in text


async def test_slices_that_are_not_made_yet_are_judged() -> None:
    """As the partitioner would decide about one more pod, of which nothing stays; else the reason why not."""
    judged, picture = JudgedOverview(), Picture()
    judged.put_node(partitioned_node())
    picture.refresh(judged.account, judged.claims)
    picture.stand(ClusterStanding(leading=Partitioners(runs=True)))
    page = FitsPage(picture, lambda: judged)
    assert "slice nvidia.com/gpu-10gb would be made on GPU 0 of a" in await page.short("nvidia.com/gpu-10gb: 1")
    text = await page.manifest("{kind: Pod, spec: {containers: [{resources: {limits: {nvidia.com/gpu-80gb: 1}}}]}}")
    assert "nvidia.com/gpu-80gb is larger than any partitioned GPU: " in text
    limits = "containers: [{resources: {limits: {nvidia.com/gpu-10gb: 1}}}]"
    elsewhere = await page.manifest(f"{{kind: Pod, spec: {{nodeSelector: {{zone: b}}, {limits}}}}}")
    assert "node selector: zone=b required" in elsewhere
    assert "the pod is gone" not in elsewhere
    held_back = await page.manifest(f"{{kind: Pod, spec: {{schedulingGates: [{{name: a/b}}], nodeName: c, {limits}}}}}")
    assert "slice nvidia.com/gpu-10gb would be made on GPU 0 of a" in held_back
    assert "until its scheduling gates are removed (a/b)" in held_back
    assert "The manifest has nodeName c: " in held_back
    assert "as GPUs are partitioned now. The partitioner would decide:" in held_back
    assert "No node offers nvidia.com/gpu" in (nobody := await page.short("1 GPU"))
    assert "gpushare does not decide" not in nobody
    assert (list(judged.known.waiting), "would be made" in await page.short("nvidia.com/gpu-80gb: 1")) == ([], False)


async def test_a_pasted_manifest_can_be_sent_again() -> None:
    """Line ends and tabs of the text stay in the field, as a browser sends them; what people cannot see is escaped."""
    page, pasted = (
        FitsPage(Picture(), JudgedOverview),
        "kind: Pod\r\nmetadata:\r\n  name: big # a\tb\r\nspec: {containers: []}",
    )
    for text in (pasted, f"{pasted} # \x1b"):
        shown = (await page.manifest(text)).partition('spellcheck="false">\n')[2].partition("</textarea>")[0]
        assert html.unescape(shown) == text.replace("\x1b", "\\x1b")
    assert "&lt;/textarea&gt;" in await page.manifest("</textarea>")


async def test_others_have_their_turn_while_a_manifest_is_read() -> None:
    """A manifest of 64 KiB takes half a second to read."""
    had: list[str] = []
    asyncio.get_running_loop().call_soon(had.append, "a turn")
    text = await FitsPage(Picture(), JudgedOverview).manifest("kind: [")
    assert ('role="alert"' in text, had) == (True, ["a turn"])
    assert "PodTemplate" in text
