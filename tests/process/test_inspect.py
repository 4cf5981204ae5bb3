"""`gpushare inspect` and `gpushare explain` as people run them: with a kubeconfig, against an API server."""

import asyncio
import base64
import hashlib
import json
import os
import pty
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.annotations import write_allocation
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, encode
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.slices.wanted import WANTED_SLICES, KeptSlice, Wanted
from gpushare_plugin.slices.wanted import encode as encode_wanted
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from tests.process.daemon import Finished, gpushare
from tests.unit.kube.pods import ALL_PODS, PODS, pod
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.unit.partitioner.partitioners import create_node, create_pod
from tests.waiting import PATIENCE

MEMORY = "aliyun.com/gpu-mem"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with two GPU nodes, one without GPUs, a running pod and one that waits."""
    async with ApiServer() as started:
        for name in ("gpu-1", "gpu-2"):
            a_node(started, name, encode(recorded(gpu(name, 0), gpu(name, 1))))
        a_node(started, "cpu-1", None)
        running(started, "model", "gpu-1", 8, "GPU-gpu-1-0")
        waiting = pod("train", units="20")
        said = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 no GPU."}
        started.store.create(PODS, {**waiting, "status": {"phase": "Pending", "conditions": [said]}})
        yield started


def a_node(server: ApiServer, name: str, record: str | None) -> None:
    """Create a node."""
    annotations = {} if record is None else {GPUS_ANNOTATION: record}
    status = {"addresses": [{"type": "InternalIP", "address": f"10.0.0.{len(name)}"}], "allocatable": {"cpu": "8"}}
    server.store.create(NODES, {"metadata": {"name": name, "annotations": annotations}, "status": status})


def running(server: ApiServer, name: str, node: str, units: int, on: str) -> None:
    """Create a pod that its node's daemon shows on a GPU."""
    made: dict[str, Any] = pod(name, node, str(units))
    made["metadata"]["annotations"] = {"gpushare/allocation": write_allocation((Share("main", MEMORY, on, units),))}
    server.store.create(PODS, made)


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    """Return a kubeconfig for it."""
    return server.kubeconfig(tmp_path / "config")


async def run(kubeconfig: Path, *arguments: str) -> Finished:
    """Run a command that has to succeed."""
    done = await gpushare(*arguments, environment={"KUBECONFIG": str(kubeconfig)})
    assert (done.status, done.errors) == (0, "")
    return done


async def test_the_table_of_a_cluster_has_nodes_with_gpus_and_the_total(kubeconfig: Path) -> None:
    """From a normal kubeconfig: GPU nodes only, with what pods have of each GPU, and the total."""
    done = await run(kubeconfig, "inspect")
    assert [line.split() for line in done.output.splitlines()] == [
        ["NAME", "IPADDRESS", "GPU0(Allocated/Total)", "GPU1(Allocated/Total)", "GPU", "Memory(GiB)"],
        ["gpu-1", "10.0.0.5", "8/15", "0/15", "8/30"],
        ["gpu-2", "10.0.0.5", "0/15", "0/15", "0/30"],
        ["-" * 68],
        ["Allocated/Total", "GPU", "Memory", "In", "Cluster:"],
        ["8/60", "(13%)"],
    ]


async def test_named_nodes_alone_are_read(server: ApiServer, kubeconfig: Path) -> None:
    """With names, as the original takes one, these nodes and their pods are asked for, and no others."""
    done = await run(kubeconfig, "inspect", "-d", "gpu-1")
    assert "model  team       8                0" in done.output
    assert "gpu-2" not in done.output
    assert {(asked.resource, asked.name) for asked in server.asked} == {("nodes", "gpu-1"), ("pods", None)}
    data = json.loads((await run(kubeconfig, "inspect", "-o", "json", "cpu-1", "gpu-2")).output)
    assert [node["name"] for node in data["nodes"]] == ["cpu-1", "gpu-2"]
    assert "NVIDIA A100-SXM4-40GB" in (await run(kubeconfig, "inspect", "-o", "wide")).output


def labelled(server: ApiServer) -> None:
    """Add a third node, which alone has the label zone=b, with a pod of another namespace."""
    a_node(server, "gpu-30", encode(recorded(gpu("gpu-30", 0, 40, product="NVIDIA H100"))))
    server.store.update(NODES, "gpu-30", {("metadata", "labels"): {"zone": "b"}})
    running(server, "other", "gpu-30", 10, "GPU-gpu-30-0")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["gpu-1", "gpu-2", "gpu-30"]),
        (["--node", "gpu-?"], ["gpu-1", "gpu-2"]),
        (["--node", "gpu-?", "gpu-30"], ["gpu-1", "gpu-2", "gpu-30"]),
        (["--node", "gpu-1", "cpu-1"], ["cpu-1", "gpu-1"]),
        (["-n", "team"], ["gpu-1", "gpu-30"]),
        (["-n", "nobody"], []),
        (["--resource", MEMORY], ["gpu-1", "gpu-2", "gpu-30"]),
        (["--model", "h100"], ["gpu-30"]),
        (["--free", "12GiB"], ["gpu-1", "gpu-2", "gpu-30"]),
        (["--free", "16"], ["gpu-30"]),
        (["-l", "zone in (a, b)"], ["gpu-30"]),
        (["-l", "zone!=b"], ["gpu-1", "gpu-2"]),
        (["-l", "zone=c"], []),
        (["--sort", "free"], ["gpu-30", "gpu-1", "gpu-2"]),
        (["--sort", "held", "--free", "1"], ["gpu-1", "gpu-30", "gpu-2"]),
    ],
    ids=lambda each: " ".join(each) or "all",
)
async def test_options_choose_the_nodes_of_every_output(
    server: ApiServer, kubeconfig: Path, arguments: list[str], names: list[str]
) -> None:
    """What is shown as JSON has its rows in the tables, in the same order, and no other node has one."""
    labelled(server)
    data = json.loads((await run(kubeconfig, "inspect", "-o", "json", *arguments)).output)
    assert [node["name"] for node in data["nodes"]] == names
    rows = [name for name in names if name != "cpu-1"]
    for output in (["-o", "wide"], ["-d"], []):
        lines = (await run(kubeconfig, "inspect", *output, *arguments)).output.removeprefix("NAME").splitlines()
        assert list(dict.fromkeys(re.findall(r"\b[gc]pu-[0-9]+\b", " ".join(lines)))) == rows


async def test_watch_follows_what_is_chosen(server: ApiServer, kubeconfig: Path) -> None:
    """A node that gets the labels is shown from then on; what happens to others shows nothing."""
    labelled(server)
    command = (sys.executable, "-m", "gpushare_plugin", "inspect", "-w", "-o", "json", "-l", "zone=b", "--free", "20")
    async with watching(kubeconfig, *command) as lines:
        assert [node["name"] for node in json.loads(await lines.readline())["nodes"]] == ["gpu-30"]
        running(server, "elsewhere", "gpu-2", 4, "GPU-gpu-2-1")
        running(server, "here", "gpu-30", 20, "GPU-gpu-30-0")
        assert json.loads(await lines.readline())["nodes"] == []
        a_node(server, "gpu-400", encode(recorded(gpu("gpu-400", 0, 40))))
        server.store.update(NODES, "gpu-400", {("metadata", "labels"): {"zone": "b"}})
        assert [node["name"] for node in json.loads(await lines.readline())["nodes"]] == ["gpu-400"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpu-11"], "found no node gpu-11; did you mean gpu-1? `kubectl get nodes` lists those that there are"),
        (["gpu-1", "-l", "zone=b"], "found no node gpu-1 with the labels zone=b; "),
        (["--node", "gpu-9*"], "--node gpu-9*: no node that shares GPUs has such a name; did you mean gpu-2?"),
        (["--node", "gpu-1", "x*"], "--node x*: no node that shares GPUs has such a name; there are gpu-1, gpu-2"),
        (["--resource", "aliyun.com/gpumem"], "no node has this resource; did you mean aliyun.com/gpu-mem?"),
        (["--model", "B200"], "no GPU has these words in its product name; there are NVIDIA A100-SXM4-40GB"),
        (["--selector", "a b"], "expected labels such as zone=a,pool!=b,disk in (x, y),!old"),
        (["--selector", "a b", "-w"], "expected labels such as zone=a,pool!=b,disk in (x, y),!old"),
        (["--resource", "x", "-w"], "--resource x: no node has this resource; there are aliyun.com/gpu-mem"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
async def test_a_wrong_choice_is_told_what_to_change(kubeconfig: Path, arguments: list[str], said: str) -> None:
    """One line with the value and the nearest one, or with what there is."""
    done = await gpushare("inspect", *arguments, environment={"KUBECONFIG": str(kubeconfig)})
    assert (done.status, done.output) == (1, "")
    assert said in done.errors


async def test_why_nothing_is_shown_is_told(kubeconfig: Path) -> None:
    """A namespace without units, with the nearest one; filters that nothing meets together; labels of no node."""
    assert (await run(kubeconfig, "inspect", "-n", "teams")).output == (
        "No pod of namespace teams has units of a GPU; did you mean team?\n"
    )
    assert (await run(kubeconfig, "inspect", "--free", "500")).output == "No GPU of this cluster meets all filters\n"
    assert (await run(kubeconfig, "inspect", "-l", "x")).output == "No node with the labels x shares GPUs.\n"


@asynccontextmanager
async def watching(kubeconfig: Path, *command: str) -> AsyncIterator[asyncio.StreamReader]:
    """Run a command until the end of the block, which reads what it prints."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            yield process.stdout
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_pending_pod_is_explained(kubeconfig: Path) -> None:
    """Why it fits on no GPU, with the numbers, what the scheduler says, and as JSON."""
    done = await run(kubeconfig, "explain", "train", "-n", "team")
    assert "The scheduler says: 0/3 nodes are available: 3 no GPU." in done.output
    assert "2 nodes: no GPU has 20 units of aliyun.com/gpu-mem free; at least 5 missing" in done.output or (
        "2 nodes: no GPU has 20 units of aliyun.com/gpu-mem free; 5 missing: gpu-1, gpu-2" in done.output
    )
    data = json.loads((await run(kubeconfig, "explain", "train", "-n", "team", "-o", "json")).output)
    assert {node["node"]: node["missing"] for node in data["nodes"]} == {"gpu-1": 5, "gpu-2": 5, "cpu-1": 20}


async def test_the_default_policy_is_the_extenders(server: ApiServer, kubeconfig: Path) -> None:
    """The Lease of the extender that leads names its policy, and scores follow it; whoever does not know it says so."""
    for name in ("gpu-1", "gpu-2"):
        running(server, f"on-{name}", name, 2, f"GPU-{name}-1")
    server.store.create(PODS, {**pod("small", units="2"), "status": {"phase": "Pending"}})
    says = {"gpushare/placement": "spread", "gpushare/clients": "anyone"}
    lease = {"metadata": {"name": "gpushare-extender", "annotations": says}}
    server.store.create("/apis/coordination.k8s.io/v1/namespaces/gpus/leases", lease)
    arguments = ("explain", "small", "-n", "team")

    to = {"KUBECONFIG": str(kubeconfig)}
    done = await gpushare(*arguments, "--extender-namespace", "gpus", environment=to)
    assert done.status == 0
    assert (
        "Placement policy: spread, chosen by the default of the scheduler extender (Lease gpus/gpushare-extender)"
        in done.output
    )
    assert "gpu-2: 2 aliyun.com/gpu-mem on GPU0" in done.output
    assert "any program that reaches its port" in done.errors
    done = await run(kubeconfig, *arguments)
    assert (
        "Placement policy: binpack, assumed: no scheduler extender has a Lease kube-system/gpushare-extender; "
        "--extender-namespace names another namespace"
    ) in done.output
    assert "gpu-2: 2 aliyun.com/gpu-mem on GPU1" in done.output

    server.permissions = [Permission("list", "nodes"), Permission("list", "pods")]
    done = await run(kubeconfig, *arguments)
    assert "assumed: you may not get the Lease kube-system/gpushare-extender of the scheduler extender" in done.output


@pytest.mark.parametrize(
    ("spec", "silent"),
    [
        ({"holderIdentity": ""}, "nobody holds the Lease"),
        (
            {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15},
            " seconds the Lease",
        ),
    ],
)
async def test_a_pod_is_told_that_no_extender_runs(
    server: ApiServer, kubeconfig: Path, spec: dict[str, Any], silent: str
) -> None:
    """Where the Lease of one is there and nobody holds it, a pod that waits waits for that."""
    lease = {"metadata": {"name": "gpushare-extender"}, "spec": spec}
    server.store.create("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease)
    said = (await run(kubeconfig, "explain", "train", "-n", "team")).output
    (line,) = (line for line in said.splitlines() if line.startswith("No scheduler extender runs: "))
    assert f"{silent} kube-system/gpushare-extender; a kube-scheduler that asks it leaves the pod pending" in line


async def test_a_running_pod_is_explained(kubeconfig: Path) -> None:
    """On which GPU it is, and who says so."""
    done = await run(kubeconfig, "explain", "model", "--namespace", "team")
    assert "Pod team/model is on node gpu-1" in done.output
    assert "  GPU0 (GPU-gpu-1-0): 8 GiB, says the node" in done.output


async def test_a_pod_that_outlives_its_node_is_explained(server: ApiServer, kubeconfig: Path) -> None:
    """A pod of a node that is gone is no error."""
    server.store.delete(NODES, "gpu-1")
    done = await run(kubeconfig, "explain", "model", "-n", "team")
    assert "Node gpu-1 offers none of these resources now." in done.output


async def test_the_context_chooses_the_cluster_and_the_namespace(kubeconfig: Path) -> None:
    """--context chooses the cluster, and the context's namespace is that of the pod; KUBECONFIG can be a list."""
    files = f"{kubeconfig}:{with_contexts(kubeconfig)}"
    done = await gpushare("explain", "model", "--context", "mine", environment={"KUBECONFIG": files})
    assert (done.status, done.errors) == (0, "")
    assert "Pod team/model is on node gpu-1" in done.output


def with_contexts(kubeconfig: Path) -> Path:
    """Leave the cluster and the user of a kubeconfig in a second file, and contexts in the first; return the second."""
    config = json.loads(kubeconfig.read_text())
    mine = {"name": "mine", "context": {"cluster": "test", "user": "test", "namespace": "team"}}
    other = {"name": "test", "context": {"cluster": "gone", "user": "test"}}
    gone = {"name": "gone", "cluster": {"server": "http://127.0.0.1:1"}}
    kubeconfig.write_text(json.dumps({**config, "contexts": [other, mine], "clusters": [gone]}))
    second = kubeconfig.with_name("second")
    second.write_text(json.dumps({**config, "contexts": []}))
    return second


def of_a_stranger(kubeconfig: Path) -> Path:
    """Return a kubeconfig with credentials that the server does not know."""
    stranger = kubeconfig.with_name("stranger")
    stranger.write_text(kubeconfig.read_text().replace('"token": "the', '"token": "another'))
    return stranger


PLUGINS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("kubectl-inspect-gpushare", ["-d", "gpu-1"]),
        ("kubectl-inspect-cgpu", ["-d", "gpu-1"]),
        ("kubectl-gpushare", ["inspect", "-d", "gpu-1"]),
    ],
)
async def test_plugins_of_kubectl_take_the_arguments_of_the_original(
    kubeconfig: Path, program: str, arguments: list[str]
) -> None:
    """Each program that kubectl starts takes the arguments that users of the original know."""
    assert "model  team       8                0" in await plugin(kubeconfig, program, *arguments)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["explain", "-n", "team", "tr"], "train\n:4\n"),
        (["explain", "-n", "te"], "team\n:4\n"),
        (["inspect", "gpu-"], "gpu-1\ngpu-2\n:4\n"),
    ],
    ids=["pod", "namespace", "node"],
)
async def test_kubectl_completes_names_in_the_cluster(
    server: ApiServer, kubeconfig: Path, words: list[str], told: str
) -> None:
    """Pods of the namespace that was typed before, namespaces and nodes."""
    for name in ("default", "team"):
        server.store.create("/api/v1/namespaces", {"metadata": {"name": name}})
    assert await plugin(kubeconfig, "kubectl_complete-gpushare", *words) == told


async def plugin(kubeconfig: Path, program: str, *arguments: str) -> str:
    """Return what a program that kubectl starts prints."""
    module, _, function = PLUGINS[program].partition(":")
    command = ("-c", f"from {module} import {function}; {function}()", *arguments)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env={**os.environ, "KUBECONFIG": str(kubeconfig)}, stdout=subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def failed(environment: dict[str, str], *arguments: str) -> str:
    """Return the one line of a command that has to fail."""
    done = await gpushare(*arguments, environment=environment)
    assert (done.status, done.output) == (1, "")
    (line,) = done.errors.splitlines()
    return line


async def test_failures_are_told_in_words(server: ApiServer, kubeconfig: Path, tmp_path: Path) -> None:
    """No kubeconfig, no right, wrong credentials, nobody there, no such node or pod: one line, with what to do."""
    with_config = {"KUBECONFIG": str(kubeconfig)}
    homeless = await failed({"HOME": str(tmp_path / "nobody")}, "inspect")
    assert homeless.startswith("gpushare: no kubeconfig: found neither --kubeconfig, KUBECONFIG nor ")
    assert "found no node gpu-9" in await failed(with_config, "inspect", "gpu-9")
    assert "found no pod nothing in namespace default" in await failed(with_config, "explain", "nothing")
    assert "no-such-context" in await failed(with_config, "inspect", "--context", "no-such-context")
    server.permissions = {Permission("list", "nodes")}
    assert "this needs the right to list pods in the whole cluster" in await failed(with_config, "inspect")
    server.permissions = None
    assert "log in again" in await failed({"KUBECONFIG": str(of_a_stranger(kubeconfig))}, "inspect")
    server.refusals.append(Refusal(503, times=2))
    assert "503: refused with 503" in await failed(with_config, "inspect")
    server.refusals.clear()
    await server.stop()
    assert "whether its server can be reached from here" in await failed(with_config, "inspect")


async def test_a_list_that_expires_is_read_again(server: ApiServer, kubeconfig: Path) -> None:
    """When the server has forgotten the first page, everything is listed in one piece."""
    server.refusals.append(Refusal(410, verb="list", resource="pods", times=1))
    assert "8/60 (13%)" in (await run(kubeconfig, "inspect")).output


async def test_watch_shows_each_change(server: ApiServer, kubeconfig: Path) -> None:
    """With --watch, one JSON document a line for each state, until interrupted; losing the server ends nothing."""
    command = (sys.executable, "-m", "gpushare_plugin", "inspect", "--watch", "-o", "json", "gpu-1")
    async with watching(kubeconfig, *command) as lines:
        assert allocated(await lines.readline()) == 8
        running(server, "second", "gpu-1", 4, "GPU-gpu-1-1")
        assert allocated(await lines.readline()) == 12
        await server.stop()
        await server.start()
        server.store.delete(PODS, "second")
        assert allocated(await lines.readline()) == 8


def allocated(line: bytes) -> int:
    """Return the units that pods have on the node."""
    (node,) = json.loads(line)["nodes"]
    return sum(each["allocated"] for each in node["resources"][0]["gpus"])


async def test_a_wide_terminal_shows_bars(kubeconfig: Path) -> None:
    """On a terminal of 200 columns each node has a bar; in one of 50, no name is broken."""
    assert "██░░░░░░░░" in await on_terminal(kubeconfig, 200)
    narrow = await on_terminal(kubeconfig, 50)
    assert "GPU0  GPU1" in narrow
    assert max(map(len, narrow.splitlines())) <= 50


@pytest.mark.parametrize(
    ("arguments", "columns", "is_blocks"),
    [([], 200, True), (["-o", "table"], 200, False), (["-d"], 200, False), (["--node", "node-1?"], 200, False)],
    ids=["many", "table", "details", "few"],
)
async def test_many_nodes_are_blocks_on_a_terminal(
    server: ApiServer, kubeconfig: Path, arguments: list[str], columns: int, *, is_blocks: bool
) -> None:
    """Where no table was asked for: the totals stand first, then a line for each node."""
    for number in range(40):
        a_node(server, f"node-{number}", encode(recorded(gpu(f"node-{number}", 0))))
    shown = await on_terminal(kubeconfig, columns, *arguments)
    assert (shown.startswith("Nodes: 42; GPUs: 44; Pods that wait for a node: 1")) is is_blocks, shown[:200]
    assert ("gpu-1    ▅▁" in shown) is is_blocks
    assert ("GPU0(Allocated" in shown) is not is_blocks


async def test_a_table_of_too_many_lines_is_blocks(server: ApiServer, kubeconfig: Path) -> None:
    """A few nodes of many GPUs have a line for each value in a narrow terminal; blocks fit; without UTF-8 as ASCII."""
    for number in range(5):
        name = f"node-{number}"
        a_node(server, name, encode(recorded(*(gpu(name, index) for index in range(8)))))
    assert "GPU7(Allocated/Total)" in await on_terminal(kubeconfig, 300)
    assert "node-1  ▁▁▁▁▁▁▁▁  0/120\r\n" in await on_terminal(kubeconfig, 50)
    assert "node-1  ........  0/120\r\n" in await on_terminal(kubeconfig, 50, locale="C")


async def test_a_pipe_has_the_table_however_many_nodes_there_are(server: ApiServer, kubeconfig: Path) -> None:
    """Programs that read the table go on doing so; blocks are there for whoever asks for them."""
    for number in range(50):
        a_node(server, f"node-{number}", encode(recorded(gpu(f"node-{number}", 0))))
    assert (await run(kubeconfig, "inspect")).output.startswith("NAME ")
    assert (await run(kubeconfig, "inspect", "-o", "blocks")).output.startswith("Nodes: 52; GPUs: 54; Pods that wait")
    chosen = (await run(kubeconfig, "inspect", "-o", "blocks", "-n", "nobody", "--resource", MEMORY)).output
    assert chosen == "No pod of namespace nobody has units of a GPU\n"
    of_team = (await run(kubeconfig, "inspect", "-o", "blocks", "-n", "team")).output
    assert of_team.startswith("Nodes: 1; GPUs: 1; Pods that wait for a node: 1\n")
    of_node = (await run(kubeconfig, "inspect", "-o", "blocks", "gpu-1")).output
    assert of_node.startswith("Nodes: 1; GPUs: 2\n")


async def on_terminal(kubeconfig: Path, columns: int, *arguments: str, locale: str = "C.UTF-8") -> str:
    """Return what `gpushare inspect` prints on a terminal of so many columns, in a locale."""
    main, terminal = pty.openpty()
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "COLUMNS": str(columns),
        "LC_ALL": locale,
        "NO_COLOR": "",
    }
    command = (sys.executable, "-m", "gpushare_plugin", "inspect", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=terminal, stderr=subprocess.DEVNULL
    )
    os.close(terminal)
    text, _ = await asyncio.gather(asyncio.to_thread(all_of, main), process.wait())
    os.close(main)
    assert process.returncode == 0
    return text.decode().replace("\x1b[1m", "").replace("\x1b[0m", "")


def all_of(terminal: int) -> bytes:
    """Read a terminal until nobody has its other end any more."""
    text = b""
    try:
        while part := os.read(terminal, 65536):
            text += part
    except OSError:
        pass
    return text


async def test_everything_is_read_in_pages(server: ApiServer, kubeconfig: Path) -> None:
    """A cluster of more objects than a page has is read whole, but for pods that have succeeded."""
    for number in range(1100):
        server.store.create(PODS, pod(f"idle-{number}"))
        server.store.create(PODS, {**pod(f"over-{number}", "gpu-1"), "status": {"phase": "Succeeded"}})
    running(server, "zz-last", "gpu-2", 3, "GPU-gpu-2-1")
    assert "11/60 (18%)" in (await run(kubeconfig, "inspect")).output
    assert len([asked for asked in server.asked if asked.resource == "pods"]) == 2
    assert len(server.store.find(ALL_PODS)) == 2203


async def test_inspect_and_explain_say_where_a_slice_is_kept(server: ApiServer, kubeconfig: Path) -> None:
    """The words say that nothing more is decided while no partitioner runs."""
    create_node(server, "n0", 40)
    uid = create_pod(server, "p", "10gb")["metadata"]["uid"]
    since = datetime.now(UTC).replace(microsecond=0)
    kept = {uid: (KeptSlice("GPU-n0-0", "10gb", since, "team/p"),)}
    text = encode_wanted(Wanted({"GPU-n0-0": {"10gb": 1}}, kept))
    server.store.update(NODES, "n0", {("metadata", "annotations", WANTED_SLICES): text})
    create_pod(server, "misspelt", "10gib")
    table = (await run(kubeconfig, "inspect")).output
    assert "misspelt" not in table
    assert "n0    10gb   0/0/1                   1" in table
    assert "n0 GPU0: being made, kept for" in table
    explained = (await run(kubeconfig, "explain", "p", "-n", "team")).output
    assert "No partitioner runs: there is no Lease kube-system/gpushare-partitioner" in explained
    assert "slice nvidia.com/gpu-10gb is kept for the pod on GPU 0 of n0" in explained
    explained = (await run(kubeconfig, "explain", "misspelt", "-n", "team")).output
    assert "  nvidia.com/gpu-10gib is no size of a slice: expected nvidia.com/gpu-<N>gb" in explained


async def test_the_cluster_is_one_file_as_html(server: ApiServer, kubeconfig: Path) -> None:
    """The map leads to the nodes in the same file; the file loads nothing, runs nothing, and escapes all names."""
    a_node(server, "gpu-3", encode(recorded(gpu("gpu-3", 0), notices=("<script>alert(1)</script>",))))
    done = await run(kubeconfig, "inspect", "-o", "html")
    assert 'href="#gpu-1/0"' in done.output
    assert 'id="gpu-1/0"' in done.output
    assert "8 of 15 GiB" in done.output
    assert "<td>model</td>" in done.output
    assert "<script" not in done.output
    assert "&lt;script&gt;alert(1)" in done.output
    (style,) = re.findall("<style>(.*?)</style>", done.output, re.DOTALL)
    (allowed,) = re.findall("'sha256-(.*?)'", done.output)
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() == allowed
    assert not re.findall(r'(?:src|href)="(?!#)', done.output)


async def test_one_file_has_the_nodes_that_were_chosen(kubeconfig: Path) -> None:
    """By the same options as a table."""
    done = await run(kubeconfig, "inspect", "-o", "html", "gpu-2")
    assert "2 GPUs on 1 node" in done.output
    assert "gpu-1" not in done.output
