"""What a tenant who may create pods, and nothing more, can do to the programs that read every pod."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.cluster.tenant import (
    KINDS,
    hostile_pods,
    long_claims,
    long_scheduler,
    long_value,
    long_wish,
    many_containers,
    many_ports,
    many_resources,
    many_terms,
    many_tolerations,
    many_values,
    within_bounds,
)
from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.tasks import background
from gpushare_plugin.extender.answers import filter_nodes, prioritize
from gpushare_plugin.extender.protocol import Arguments
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.collection import Gone
from gpushare_plugin.kube.nodes import judged_node
from gpushare_plugin.kube.objects import ApiNode, ApiPod, Metadata, PodSpec
from gpushare_plugin.kube.own_node.pods import OwnPods
from gpushare_plugin.kube.pods import judged_pod, pod_of
from gpushare_plugin.kube.scheduling.budgets import PodDisruptionBudget, budget
from gpushare_plugin.kube.whole_cluster.overview import Overview
from gpushare_plugin.ledger.annotations import (
    ALLOCATION,
    HAMI_MODELS,
    MOST_CHARACTERS,
    PLACEMENT,
    PROMISE,
    write_allocation,
)
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.cluster_wide import MOST_REQUESTS
from gpushare_plugin.ledger.constraints import MOST_CHARACTERS as MOST_OF_VALUES
from gpushare_plugin.ledger.constraints import MOST_RULES, MOST_VALUES, Requirement, Toleration
from gpushare_plugin.ledger.demand import MOST_PORTS, NOTHING
from gpushare_plugin.ledger.disruption import MOST_RULES as MOST_BUDGET_RULES
from gpushare_plugin.ledger.disruption import Budget, Disruptions
from gpushare_plugin.ledger.kube_scheduler import refusal
from gpushare_plugin.ledger.node import GPU_MEMORY, Node
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION
from gpushare_plugin.ledger.pod import MOST_LABELS, Pod, Share
from gpushare_plugin.ledger.request import (
    MOST_CONTAINERS,
    MOST_RESOURCES,
    MOST_WISHES,
    Wishes,
)
from gpushare_plugin.ledger.taint import Taint
from gpushare_plugin.ledger.verdicts import Misfit
from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.observe.cluster.explained import lines
from gpushare_plugin.observe.cluster.explanation import Told, explain
from gpushare_plugin.observe.cluster.report import cluster_report
from gpushare_plugin.observe.cluster.tables import details, summary, wide
from gpushare_plugin.partition import words
from gpushare_plugin.partition.decide import decide
from gpushare_plugin.partition.pods import problem
from gpushare_plugin.partitioner.known import Known
from gpushare_plugin.testing.cluster import ApiServer
from tests.attacks.unseen import HOSTILE, assert_seen
from tests.attacks.work import work
from tests.process.daemon import gpushare
from tests.process.test_cli import printed
from tests.unit.extender.extenders import PODS, extender, node, pod
from tests.unit.ledger.objects import free, memory_node, uuid
from tests.unit.partition.objects import decided, gpu
from tests.unit.partition.objects import node as partition_node
from tests.unit.partition.objects import pod as waiting_pod
from tests.unit.partitioner.partitioners import (
    ROOM,
    create_node,
    messages,
    partitioner,
    record,
    slices,
)
from tests.waiting import until

MEMORY = {GPU_MEMORY: "1"}
SLICE = {"nvidia.com/gpu-10gb": "1"}
BYTES_OF_A_POD = 64 * 1024
Made = dict[str, Any]
Make = Callable[[int, Mapping[str, str], int], Made]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODE = Node("n", labels={"kubernetes.io/hostname": "n"}, allocatable={"pods": 110})


def decoded(body: Made) -> ApiPod:
    """Return a pod as the partitioner decodes it; the extender decodes less."""
    return msgspec.json.decode(json.dumps(body), type=ApiPod)


@pytest.mark.parametrize(
    "make", [many_resources, many_terms, many_values, many_containers, many_tolerations, many_ports]
)
@pytest.mark.parametrize("count", [32, 2000])
def test_work_is_linear_in_what_a_pod_has(make: Make, count: int) -> None:
    """Twice as much of anything in a pod is twice the work at most, within the bounds and beyond them."""

    def judge(pod: ApiPod) -> None:
        pod_of(pod)
        refusal(judged_pod(pod), NODE, judged_pod(pod).needs.demand)

    once, twice = (decoded(make(times, SLICE, times * count)) for times in (1, 2))
    judge(once)
    assert work(lambda: judge(twice)) <= 2.2 * work(lambda: judge(once)) + 500


def _extender(pod: ApiPod) -> None:
    account = ClusterAccount()
    account.put_node(memory_node(40, 40))
    account.put_pod(pod_of(pod))
    asked = Arguments(pod_object=msgspec.Raw(msgspec.json.encode(pod)), node_names=["node"])
    filter_nodes(account, asked)
    prioritize(account, asked)


def _partitioner(pod: ApiPod) -> None:
    known = _partitioned()
    known.put_pod(pod)
    decisions = decide(known.nodes, known.waiting, NOW, known.rules(NOW, 60.0, "binpack"))
    for refusal_of_pod in decisions.refused.values():
        words.refusal(refusal_of_pod)


def _daemon(pod: ApiPod) -> None:
    pod_of(replace(pod, spec=replace(pod.spec, node_name="node")))


def _overview(pod: ApiPod) -> Overview:
    overview = Overview()
    overview.put_node(judged_node(msgspec.convert(node("node", 40, 40), ApiNode)))
    overview.put_pod(pod)
    return overview


def _inspect(pod: ApiPod) -> None:
    overview = _overview(replace(pod, spec=replace(pod.spec, node_name="node")))
    report = cluster_report([overview.account.account_of("node")], overview.waiting.values())
    for show in (summary, details, wide):
        list(show(report, Style()))


def _explain(pod: ApiPod) -> None:
    overview = _overview(pod)
    list(lines(explain(overview.account, pod_of(pod), Told({}, ""))))


@pytest.mark.parametrize("program", [_extender, _partitioner, _daemon, _inspect, _explain])
@pytest.mark.parametrize("make", [each for each in KINDS if each is not within_bounds])
def test_work_is_linear_in_every_program(program: Callable[[ApiPod], None], make: Make) -> None:
    """Twice as much in a pod is twice the work at most, from the decoded pod to what is answered or printed."""
    asked = SLICE if program is _partitioner else MEMORY
    most = 100_000 if make in {long_wish, long_claims, long_value, long_scheduler} else 2000
    once, twice = (decoded(make(1, asked, times * most)) for times in (1, 2))
    program(once)
    assert work(lambda: program(twice)) <= 2.2 * work(lambda: program(once)) + 500


async def test_the_daemon_keeps_no_more_of_an_annotation_than_it_would_write(server: ApiServer, tmp_path: Path) -> None:
    """Of the annotations that it writes itself, it knows whether they are as they should be, whatever was there."""
    body = long_claims(1, MEMORY)
    body["spec"]["nodeName"] = "ours"
    uid = server.store.create(PODS, body)["metadata"]["uid"]
    async with Client(server.kubeconfig(tmp_path / "config")) as client, background() as spawn:
        own = OwnPods(client, "ours")
        spawn("pods", own.follow)
        kept = await until(lambda: own.get(uid))
        assert kept is not None
        assert [len(text) for _, text in kept.written] == [MOST_CHARACTERS + 1]


@pytest.mark.parametrize(("make", "count", "most"), [(many_resources, 8000, 13), (many_containers, 4000, 45)])
def test_parts_of_a_pod_that_are_not_kept_are_not_read(make: Make, count: int, most: int) -> None:
    """Of thousands of amounts, only the names are looked at: each costs a few steps in extender and partitioner."""
    pod = decoded(make(1, SLICE, count))

    def judge() -> None:
        judged_pod(pod)

    assert work(judge) <= most * count


@pytest.mark.parametrize(
    ("make", "found", "most"),
    [
        (many_resources, "8,000 resources", MOST_RESOURCES),
        (many_containers, "4,000 containers", MOST_CONTAINERS),
    ],
)
def test_a_pod_beyond_the_bounds_is_refused_with_the_reason(make: Make, found: str, most: int) -> None:
    """Every node says what is too much of the pod and what is allowed, whether the extender or `explain` asks."""
    account = ClusterAccount()
    account.put_node(memory_node(40, 40))
    pod = pod_of(decoded(make(1, MEMORY, 8000 if make is many_resources else 4000)))
    verdict = account.fits_pod(pod, ["node"])["node"]
    assert account.concerns(pod.request)
    assert isinstance(verdict, Misfit)
    assert f"{found} (at most {most})" in verdict.summary


@pytest.mark.parametrize(
    ("make", "found", "most"),
    [
        (many_terms, "16,000 rules of node selector, node affinity and tolerations", MOST_RULES),
        (many_values, "8,000 values in its node affinity", MOST_VALUES),
        (many_tolerations, "8,000 rules of node selector, node affinity and tolerations", MOST_RULES),
        (many_ports, "8,000 host ports", MOST_PORTS),
        (many_resources, "8,000 resources", MOST_RESOURCES),
    ],
)
def test_a_pod_beyond_the_bounds_gets_no_slice_and_the_reason(make: Make, found: str, most: int) -> None:
    """The partitioner looks for no node for it: the pod's Event says what is too much."""
    known = Known("binpack")
    known.put_pod(decoded(make(1, SLICE, 8000)))
    [pod] = known.waiting
    assert f"{found} " in str(problem(pod))
    assert f"(at most {most:,})" in str(problem(pod))


def test_names_of_models_are_compared_once_for_each_model() -> None:
    """What a pod wants is compared with each model once in a round, not with each GPU of the cluster."""
    wishes = Wishes(models=tuple(f"{each}-none-of-ours" for each in range(MOST_WISHES)))

    def round_of(nodes: int) -> int:
        gpus = {name: [gpu(index, node=name) for index in range(8)] for name in map(str, range(nodes))}
        there = [partition_node(*each, name=name) for name, each in gpus.items()]
        asked = waiting_pod("p", "10gb", wishes=wishes)
        return work(lambda: decided(there, asked)) - work(lambda: decided(there))

    assert round_of(20) - round_of(1) < 20 * 8 * MOST_WISHES / 2


def told(pod: Pod) -> str:
    """Return why the node cannot take a pod."""
    refused = refusal(pod, NODE, NOTHING)
    assert refused is not None
    return refused.summary


def test_the_reason_of_a_node_is_short_whatever_a_pod_requires() -> None:
    """What a node lacks is said once for each node: three terms and values of them are enough."""
    pod = judged_pod(decoded(many_terms(1, SLICE, MOST_RULES // 2)))
    assert pod.needs.problem is None
    assert len(told(pod)) < 500
    values = judged_pod(decoded(many_values(1, SLICE, MOST_VALUES)))
    assert values.needs.problem is None
    assert "and 1021 more" in told(values)
    value = judged_pod(decoded(long_value(1, SLICE, MOST_OF_VALUES)))
    assert value.needs.problem is None
    assert len(told(value)) < 500


def test_a_value_beyond_the_bound_is_not_kept() -> None:
    """Not every API server limits the values of node affinity: their characters are bounded together."""
    known = Known("binpack")
    known.put_pod(decoded(long_value(1, SLICE, MOST_OF_VALUES + 1)))
    [pod] = known.waiting
    assert "65,537 characters in the values of its node affinity (at most 65,536)" in str(problem(pod))
    assert len(repr(pod)) < 2000


def test_the_name_of_a_scheduler_is_not_kept() -> None:
    """No API server limits the name."""
    assert "xxx" not in repr(judged_pod(decoded(long_scheduler(1, SLICE))))


@pytest.mark.parametrize(
    ("text", "greater"), [("9" * 5000, False), ("-" + "9" * 5000, False), ("0" * 5000 + "4", True), ("4", True)]
)
def test_a_number_has_any_number_of_digits(text: str, greater: bool) -> None:  # noqa: FBT001 - what is expected
    """As in Kubernetes, one of more than 64 bits is no number, and zeros before one are nothing."""
    assert Requirement("speed", "Gt", (text,)).met_by({"speed": "5"}) is greater
    assert not Requirement("speed", "Lt", (text,)).met_by({"speed": "5"})
    tolerates = Toleration("speed", "Gt", text).tolerates(Taint("speed", "5", "NoSchedule"))
    assert tolerates is (greater and not text.startswith("0"))


async def test_a_number_of_any_length_ends_no_round_of_the_partitioner(server: ApiServer, tmp_path: Path) -> None:
    """Pods of others get their slices beside a pod whose node affinity has a number that Python does not read."""
    create_node(server, "n0", 40)
    server.store.update(NODES, "n0", {("metadata", "labels"): {"kubernetes.io/hostname": "n0"}})
    hostile = long_value(1, SLICE, MOST_OF_VALUES)
    server.store.create(PODS, {**hostile, "metadata": {**hostile["metadata"], "namespace": "team"}})
    server.store.create(PODS, pod("ordinary", SLICE))
    async with partitioner(server, tmp_path / "partitioner"):
        await until(lambda: slices(server, "n0") == {"GPU-n0-0": {"10gb": 1}})
        assert await until(lambda: messages(server, "hostile-1"))


def test_a_pod_beyond_the_bounds_holds_its_units_all_the_same() -> None:
    """Whoever binds such a pod to a node takes units there: of a GPU that the node's daemon names, or of any."""
    body = many_resources(1, MEMORY)
    body["spec"]["nodeName"] = "node"
    account = ClusterAccount()
    account.put_node(memory_node(40, 40))
    account.put_pod(pod_of(decoded(body)))
    assert free(account) == [39, 39]
    share = Share("main", GPU_MEMORY, uuid(0), 1)
    body["metadata"]["annotations"][ALLOCATION] = write_allocation((share,))
    account.put_pod(pod_of(decoded(body)))
    assert free(account) == [39, 40]


def _account_rounds() -> Callable[[bytes], Callable[[], None]]:
    """Return what the extender does with a pod: it takes it in, is asked about it; what is returned removes it."""
    account = ClusterAccount()
    account.put_node(memory_node(40, 40))

    def put(text: bytes) -> Callable[[], None]:
        pod = pod_of(msgspec.json.decode(text, type=ApiPod))
        account.put_pod(pod)
        account.fits_pod(pod_of(msgspec.json.decode(text, type=ApiPod)), ["node"])
        return lambda: account.remove_pod(pod.uid)

    return put


def _partitioned() -> Known:
    """Return what a partitioner knows of a cluster with one node of one GPU."""
    known = Known("binpack")
    metadata = {"name": "n0", "uid": "uid-n0", "annotations": {GPUS_ANNOTATION: record("n0", (40,))}}
    known.put_node(judged_node(msgspec.convert({"metadata": metadata, "status": {"allocatable": ROOM}}, ApiNode)))
    return known


def _known_rounds() -> Callable[[bytes], Callable[[], None]]:
    """Return what the partitioner does with a pod: it takes it in and judges it; what is returned removes it."""
    known = _partitioned()

    def put(text: bytes) -> Callable[[], None]:
        pod = msgspec.json.decode(text, type=ApiPod)
        known.put_pod(pod)
        gone = Gone(pod.metadata.uid, pod.metadata.namespace, pod.metadata.name)
        rules = known.rules(NOW, 60.0, "binpack")
        for waiting in known.waiting:
            if waiting.uid == gone.uid and problem(waiting) is None:
                rules.runs_on(waiting, "n0", ())
        return lambda: known.remove_pod(gone)

    return put


@pytest.mark.parametrize(("rounds", "asked"), [(_account_rounds, MEMORY), (_known_rounds, SLICE)])
def test_pods_that_have_gone_leave_nothing_in_memory(
    rounds: Callable[[], Callable[[bytes], Callable[[], None]]], asked: Mapping[str, str]
) -> None:
    """While pods are there, 64 KiB of each are kept; afterwards, the verdicts on the last few, and never more."""
    bodies = hostile_pods(3 * len(KINDS), asked)
    for number, body in enumerate(bodies):
        body["metadata"]["uid"] = f"uid-{number}"
    texts = [json.dumps(body).encode() for body in bodies]
    put = rounds()
    tracemalloc.start()
    try:
        before = _kept()
        removals = [put(text) for text in texts]
        full = _kept()
        while removals:
            removals.pop()()
        once = _kept()
        for text in texts:
            put(text)()
        twice = _kept()
    finally:
        tracemalloc.stop()
    assert (full - before) / len(texts) < BYTES_OF_A_POD
    assert once - before < min(MOST_REQUESTS, len(texts)) * BYTES_OF_A_POD / 2
    assert twice - once < len(texts) * 1024


def _kept() -> int:
    """Return the bytes that Python has given out and that somebody still uses."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node of two GPUs."""
    async with ApiServer() as started:
        started.store.create(NODES, node("ours", 16, 16))
        yield started


async def said(server: ApiServer, folder: Path, *command: str) -> str:
    """Return what a command prints."""
    done = await gpushare(*command, environment={"KUBECONFIG": str(server.kubeconfig(folder / "config"))})
    assert (done.status, done.errors) == (0, "")
    return done.output


@pytest.mark.parametrize("where", ["waits", "ours"])
@pytest.mark.parametrize("output", ["text", "json"])
async def test_text_of_a_pod_reaches_no_terminal_as_it_is(
    server: ApiServer, tmp_path: Path, where: str, output: str
) -> None:
    """`explain` shows wishes, promises and conditions of pods with an escape for what would not be seen."""
    texts = dict.fromkeys((HAMI_MODELS, PROMISE, ALLOCATION, PLACEMENT), HOSTILE)
    body = pod("hostile", 5, annotations=texts, labels={"aliyun.com/gpu-count": "many"})
    body["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": HOSTILE}]
    body["spec"]["schedulerName"] = HOSTILE
    if where == "ours":
        body["spec"]["nodeName"] = where
    server.store.create(PODS, body)
    assert_seen(await said(server, tmp_path, "explain", "hostile", "-n", "team", "-o", output))


async def test_text_of_a_pod_is_no_part_of_an_event(server: ApiServer, tmp_path: Path) -> None:
    """The extender's answer, which becomes an Event, and the partitioner's Events show text as text."""
    asked = server.store.create(PODS, pod("hostile", 5, annotations={HAMI_MODELS: HOSTILE}))
    async with extender(server, tmp_path) as asking:
        await asking.knows("ours")
        assert_seen(str((await asking.filter(asked, "ours"))["FailedNodes"]["ours"]), repeated=False)
    create_node(server, "n0", 40)
    sliced = pod("sliced", SLICE, annotations={HAMI_MODELS: HOSTILE})
    server.store.create(PODS, sliced)
    async with partitioner(server, tmp_path / "partitioner"):
        found = await until(lambda: messages(server, "sliced"))
    assert_seen("\n".join(found), repeated=False)


async def test_a_terminal_gets_no_control_sequence_but_bold(server: ApiServer, tmp_path: Path) -> None:
    """Headings are bold there; whatever a pod says is text."""
    server.store.create(PODS, pod("hostile", 5, annotations={HAMI_MODELS: HOSTILE}))
    environment = {"KUBECONFIG": str(server.kubeconfig(tmp_path / "config"))}
    command = ("explain", "hostile", "-n", "team")
    text = await asyncio.to_thread(printed, command, environment, terminal=True)
    assert "\x1b[1mPod team/hostile" in text
    assert_seen(text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\r\n", "\n"))


def a_budget(number: int) -> PodDisruptionBudget:
    """Return a budget that allows no eviction of the pods of an app of its own."""
    body = {
        "metadata": {"namespace": "tenant", "name": f"budget-{number}"},
        "spec": {"selector": {"matchLabels": {"app": f"app-{number}"}}},
        "status": {"disruptionsAllowed": 0},
    }
    return msgspec.json.decode(json.dumps(body), type=PodDisruptionBudget)


def test_budgets_by_the_thousand_cost_what_is_kept_of_them() -> None:
    """Beyond the bound of a namespace more budgets are no more work; those of another namespace count as before."""
    labels = {"app": "app-0"} | {f"label-{number}": "x" * 63 for number in range(2000)}
    metadata = [Metadata(uid=each, namespace=each, name="p", labels=labels) for each in ("tenant", "other")]
    victims = [pod_of(ApiPod(metadata=each, spec=PodSpec(node_name="n")), evictable=True) for each in metadata]

    def known(count: int) -> Disruptions:
        made = Disruptions()
        for number in range(count):
            made.put_budget(budget(a_budget(number)))
        made.put_budget(Budget("other", "mine", (), allowed=0))
        return made

    bounded, beyond = known(MOST_BUDGET_RULES), known(4 * MOST_BUDGET_RULES)
    assert work(lambda: bounded.violations(victims)) == work(lambda: beyond.violations(victims)) > MOST_BUDGET_RULES
    assert bounded.violations(victims) == beyond.violations(victims) == 2


def test_labels_kept_of_a_pod_are_bounded_in_number() -> None:
    """Each label is compared with the selectors of budgets, and kept until the pod is deleted."""
    labels = {f"label-{number:05}": "x" * 63 for number in range(10_000)}
    found = pod_of(ApiPod(metadata=Metadata(uid="p", namespace="tenant", name="p", labels=labels)), evictable=True)
    assert len(found.labels.pairs) == MOST_LABELS
    assert sum(len(text) for label in found.labels.pairs for text in label) < BYTES_OF_A_POD
