"""`gpushare list`, run by hand in the daemon's pod: it shows the daemon's state, or else what the config plans."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.cli.commands.node.list import NEEDS_ATTENTION
from gpushare_plugin.kube.names import UNHEALTHY_GPUS
from gpushare_plugin.kubelet.paths import DEFAULT_PLUGIN_DIRECTORY
from gpushare_plugin.observe.daemon_socket import socket_path
from gpushare_plugin.testing.cluster import ApiServer, granted
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.chart.reading import container
from tests.chart.rendering import objects
from tests.process.daemon import Daemon, Finished, gpushare, process, running
from tests.unit.kube.cluster import NODE, a_node, annotate, label
from tests.waiting import PATIENCE

GPUS = "gpus:\n- {name: NVIDIA A10, memory: 24GiB, count: 2}\n"
TURNS = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
MEMORY = "version: v1\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}\n"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server that knows the daemon by the chart's rules."""
    async with ApiServer(granted(objects(), "gpushare")) as started:
        a_node(started)
        yield started


async def listed(server: ApiServer, folder: Path) -> tuple[str, str]:
    """Return what `gpushare list` prints with the environment of the chart's pod, and its complaints."""
    configs = folder / "configs"
    configs.mkdir()
    (configs / "default").write_text(MEMORY)
    (configs / "turns").write_text(TURNS)
    (folder / "gpus.yaml").write_text(GPUS)
    environment = {
        "NODE_NAME": NODE,
        "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig")),
        "SIMULATE": str(folder / "gpus.yaml"),
        "CONFIG_DIRECTORY": str(configs),
    }
    done = await gpushare("list", "--device-plugin-path", folder, environment=environment)
    assert done.status == NEEDS_ATTENTION, done.errors
    assert "Source: the config; no daemon answers at " in done.errors
    return done.output, done.errors


@pytest.mark.parametrize(("name", "resource"), [(None, "aliyun.com/gpu-mem"), ("turns", "nvidia.com/gpu")])
async def test_the_label_of_the_node_counts(
    server: ApiServer, short_path: Path, name: str | None, resource: str
) -> None:
    """The resources are those of the config that the node's label chooses, or of the default one."""
    label(server, "nvidia.com/device-plugin.config", name)
    output, errors = await listed(server, short_path)
    assert output.count(resource) == 2
    assert "labels" not in errors


async def test_labels_that_cannot_be_read_are_told(server: ApiServer, short_path: Path) -> None:
    """Without the right to read the node, the default config is shown, and that the label is not known."""
    server.permissions = frozenset()
    output, errors = await listed(server, short_path)
    assert output.count("aliyun.com/gpu-mem") == 2
    assert "cannot read the labels of the Node" in errors


GPU_MEM, GPU = "aliyun.com/gpu-mem", "nvidia.com/gpu"
LONG = "a-deployment-with-a-name-of-many-words-7c9f8d6b54-x2x4z"

Start = Callable[[], AbstractAsyncContextManager[Daemon]]


@pytest.fixture
async def environment(server: ApiServer, kubelet: EmbeddedKubelet, short_path: Path) -> dict[str, str]:
    """Return the environment of the chart's pod, which the kubelet shows, with two named configs."""
    await kubelet.admit(Pod("gpushare-x", [Container("gpushare", {})], namespace="kube-system"))
    configs = short_path / "configs"
    configs.mkdir()
    (configs / "default").write_text(MEMORY)
    (configs / "turns").write_text(TURNS)
    (short_path / "gpus.yaml").write_text(GPUS)
    return {
        "NODE_NAME": NODE,
        "KUBECONFIG": str(server.kubeconfig(short_path / "kubeconfig")),
        "SIMULATE": str(short_path / "gpus.yaml"),
        "CONFIG_DIRECTORY": str(configs),
        "DEVICE_PLUGIN_PATH": str(kubelet.plugin_directory),
        "POD_RESOURCES_SOCKET": str(kubelet.pod_resources_socket),
        "POD_NAMESPACE": "kube-system",
        "POD_NAME": "gpushare-x",
    }


@pytest.fixture
def start(kubelet: EmbeddedKubelet, environment: dict[str, str]) -> Start:
    """Return how to run the daemon of that pod."""
    return lambda: running(kubelet, environment=environment)


async def table_and_data(environment: dict[str, str]) -> tuple[Finished, Finished, list[dict[str, Any]]]:
    """Return what `gpushare list` says, for people and as JSON, and its GPUs; both say the same."""
    table, data = await asyncio.gather(
        gpushare("list", environment=environment), gpushare("list", "-o", "json", environment=environment)
    )
    assert table.status == data.status
    return table, data, json.loads(data.output)["gpus"]


async def until_listed(environment: dict[str, str], key: str, values: list[object]) -> None:
    """Wait until the GPUs have these values."""
    async with asyncio.timeout(PATIENCE):
        while True:
            gpus = json.loads((await gpushare("list", "-o", "json", environment=environment)).output)["gpus"]
            if [gpu[key] for gpu in gpus] == values:
                return


async def test_the_running_daemon_is_asked(start: Start, kubelet: EmbeddedKubelet, environment: dict[str, str]) -> None:
    """With the environment of its pod alone, `list` finds the daemon, says so, and all is well; only root may ask."""
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        await kubelet.admit(Pod("model", [Container("main", {GPU_MEM: 5})], namespace="team"))
        table, data, gpus = await table_and_data(environment)
        path = socket_path(kubelet.plugin_directory)
        assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert (table.status, data.errors) == (0, "")
    assert table.errors.startswith("Source: the running daemon, gpushare ")
    assert json.loads(data.output)["source"] == "daemon"
    assert [(gpu["resource"], gpu["units"], gpu["used"], gpu["health"], gpu["state"]) for gpu in gpus] == [
        (GPU_MEM, 24, 5, "healthy", "available"),
        (GPU_MEM, 24, 0, "healthy", "available"),
    ]
    assert (gpus[0]["mode"], gpus[0]["isolation"], gpus[0]["reason"]) == ("memory", "none", None)
    (use,) = gpus[0]["uses"]
    assert use.items() >= {"namespace": "team", "pod": "model", "container": "main", "units": 5}.items()
    lines = [line.split() for line in table.output.splitlines()]
    assert lines[0] == ["GPU", "NAME", "MEMORY", "UNIT", "RESOURCE", "USED", "HEALTH", "STATE"]
    assert lines[1] == ["0", "NVIDIA", "A10", "24576", "MiB", "1024", "MiB", GPU_MEM, "5/24", "healthy", "available"]
    assert lines[-1] == ["0", "team", "model", "main", GPU_MEM, "5"]
    assert not path.parent.exists()


async def test_a_gpu_that_waits_shows_what_pods_hold_and_not_what_the_label_wishes(
    start: Start, server: ApiServer, kubelet: EmbeddedKubelet, environment: dict[str, str]
) -> None:
    """A label chose another config while a pod runs: its GPU shows the old units, who holds them, and why it waits."""
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        pod = await kubelet.admit(Pod("model", [Container("main", {GPU_MEM: 5})]))
        label(server, "nvidia.com/device-plugin.config", "turns")
        await daemon.logged("gpu_waiting")
        await until_listed(environment, "state", ["waiting", "available"])
        table, _, gpus = await table_and_data(environment)
        assert table.status == 3
        assert [(gpu["resource"], gpu["units"], gpu["retired"], gpu["used"]) for gpu in gpus] == [
            (GPU_MEM, 0, 5, 5),
            (GPU, 4, 0, 0),
        ]
        assert gpus[0]["waiting"] == "changes its mode when its pods end: default/model"
        assert f"GPU 0: {gpus[0]['waiting']}" in table.output.splitlines()
        assert f"GPU 0: 5 units of {GPU_MEM} retired: no new pod gets them" in table.output.splitlines()
        kubelet.delete(pod.pod)
        await until_listed(environment, "state", ["available", "available"])
        assert (await gpushare("list", environment=environment)).status == 0


async def test_a_restarted_daemon_shows_what_was_held_before(
    start: Start, server: ApiServer, kubelet: EmbeddedKubelet, environment: dict[str, str]
) -> None:
    """Units of a resource that is offered no more are counted to their GPU by their IDs, so nothing held is missing."""
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        await kubelet.admit(Pod("model", [Container("main", {GPU_MEM: 5})]))
    label(server, "nvidia.com/device-plugin.config", "turns")
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU: 4, GPU_MEM: 0})
        _, _, gpus = await table_and_data(environment)
    assert [(gpu["resource"], gpu["units"], gpu["used"], gpu["state"]) for gpu in gpus] == [
        (GPU_MEM, 0, 5, "waiting"),
        (GPU, 4, 0, "available"),
    ]


async def test_a_cordoned_gpu_does_not_look_free(
    start: Start, server: ApiServer, kubelet: EmbeddedKubelet, environment: dict[str, str]
) -> None:
    """The cordon is the state of the GPU, with what cordons it; its health is another matter."""
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        annotate(server, UNHEALTHY_GPUS, "1")
        await daemon.advertises(kubelet, {GPU_MEM: 24})
        table, _, gpus = await table_and_data(environment)
    assert table.status == 3
    assert [(gpu["health"], gpu["state"]) for gpu in gpus] == [("healthy", "available"), ("healthy", "cordoned")]
    assert gpus[1]["cordon"] == gpus[1]["reason"] == f"cordoned by annotation {UNHEALTHY_GPUS}"
    assert f"GPU 1: cordoned by annotation {UNHEALTHY_GPUS}" in table.output.splitlines()


async def test_a_daemon_started_by_hand_is_found(short_path: Path) -> None:
    """By its plugin directory, also where no kubelet runs: nothing is registered, and that is no success."""
    (short_path / "gpus.yaml").write_text(GPUS)
    directory = ("--device-plugin-path", short_path)
    async with process("run", "--simulate", short_path / "gpus.yaml", *directory) as daemon:
        await daemon.until(socket_path(short_path).exists, "its socket")
        listed = await gpushare("list", *directory)
        await daemon.stop()
    assert listed.status == 3
    assert [line.split()[-3:] for line in listed.output.splitlines()[1:3]] == [["?/24", "healthy", "unregistered"]] * 2
    assert f"Not ready: {GPU_MEM}: not registered with the kubelet" in listed.output.splitlines()
    assert "cannot list the pods that hold units" in listed.errors
    assert "Source: the running daemon" in listed.errors


async def test_a_socket_that_is_removed_comes_back(
    start: Start, kubelet: EmbeddedKubelet, environment: dict[str, str]
) -> None:
    """A kubelet that starts leaves the socket alone; when the directory was emptied, the daemon makes it again."""
    path = socket_path(kubelet.plugin_directory)
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        await kubelet.restart()
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        assert (await gpushare("list", environment=environment)).errors.startswith("Source: the running daemon")
        path.unlink()
        path.parent.rmdir()
        await daemon.until(path.exists, "its socket is back")
        assert (await gpushare("list", environment=environment)).errors.startswith("Source: the running daemon")


async def test_an_option_that_chooses_a_config_shows_what_the_config_means(
    start: Start, kubelet: EmbeddedKubelet, environment: dict[str, str], short_path: Path
) -> None:
    """The plan is shown also while a daemon runs; a line says so."""
    options = ("--config-file", short_path / "configs" / "turns")
    alone = {name: value for name, value in environment.items() if name != "CONFIG_DIRECTORY"}
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        planned = await gpushare("list", *options, environment=alone)
    assert planned.status == 0
    assert planned.errors.startswith("Source: the config; the daemon was not asked, because an option chooses")
    assert [line.split()[-4:] for line in planned.output.splitlines()[1:]] == [[GPU, "0/4", "unknown", "planned"]] * 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection without an answer"),
        (b"{", "cannot be read: it is not JSON, or not all of it, expected a report of version 1"),
        (b'{"version": 2, "gpus": []}', "cannot be read: it is a report of version 2, expected a report of version 1"),
    ],
    ids=["none", "half", "another version"],
)
async def test_an_answer_that_cannot_be_read_needs_attention(
    environment: dict[str, str], short_path: Path, answer: bytes, why: str
) -> None:
    """A daemon of another version, or one that dies: the plan is shown with the reason, which is no success."""
    async with answering(short_path / "plugins", answer):
        table, data, _ = await table_and_data({**environment, "DEVICE_PLUGIN_PATH": str(short_path / "plugins")})
    assert (table.status, table.output.count(GPU_MEM)) == (NEEDS_ATTENTION, 2)
    for done in (table, data):
        assert "Source: the config; " in done.errors
        assert why in done.errors


async def test_a_plan_that_fails_too_hides_no_reason(environment: dict[str, str], short_path: Path) -> None:
    """Neither a daemon nor a usable config: both reasons are told, and the status is that of a failure."""
    (short_path / "configs" / "default").write_text("version: v2\n")
    done = await gpushare("list", environment={**environment, "DEVICE_PLUGIN_PATH": str(short_path / "plugins")})
    assert done.status == 1
    assert "no daemon answers at " in done.errors
    assert "version" in done.errors.splitlines()[-1]


async def test_a_daemon_that_hangs_needs_attention(
    start: Start, kubelet: EmbeddedKubelet, environment: dict[str, str]
) -> None:
    """A daemon that is stopped does not look like one where all is well; once it goes on, all is well again."""
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            done = await gpushare("list", environment=environment)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        assert (await gpushare("list", environment=environment)).status == 0
    assert done.status == NEEDS_ATTENTION
    assert "it hangs or is stopped" in done.errors


async def test_a_config_that_was_deleted_is_a_warning(
    kubelet: EmbeddedKubelet, environment: dict[str, str], short_path: Path
) -> None:
    """The daemon keeps what it shares; `list` says so, and no longer tells mistakes of a file that is gone."""
    file = short_path / "config.yaml"
    file.write_text(MEMORY)
    alone = {**environment, "CONFIG_FILE": str(file)}
    del alone["CONFIG_DIRECTORY"]
    async with running(kubelet, environment=alone) as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        file.write_text("version: v2\n")
        await daemon.logged("config_rejected")
        file.unlink()
        await daemon.logged("config_unreadable")
        done = await gpushare("list", environment=alone)
    (warning,) = [line for line in done.output.splitlines() if line.startswith("Warning: ")]
    assert warning.startswith("Warning: the previous configuration stays in effect: ")
    assert str(file) in warning


async def test_a_daemon_of_another_version_is_understood(environment: dict[str, str], short_path: Path) -> None:
    """Fields and words that this version does not know are no trouble, nor are fields that it misses."""
    gpu = {"index": 0, "uuid": "GPU-0", "name": "[B300]", "state": "resting", "health": "healthy", "price": 7}
    newer = {"version": 1, "source": "daemon", "gpushare": "9.0", "gpus": [gpu], "weather": "fine"}
    async with answering(short_path / "plugins", json.dumps(newer).encode()):
        done = await gpushare("list", environment={**environment, "DEVICE_PLUGIN_PATH": str(short_path / "plugins")})
    assert (done.status, done.errors) == (3, "Source: the running daemon, gpushare 9.0\n")
    assert done.output.splitlines()[1].split() == ["0", "[B300]", "-", "-", "-", "-", "healthy", "resting"]


@contextlib.asynccontextmanager
async def answering(plugins: Path, answer: bytes) -> AsyncIterator[None]:
    """Answer as the daemon of this plugin directory."""

    async def send(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    path = socket_path(plugins)
    path.parent.mkdir(parents=True)
    async with await asyncio.start_unix_server(send, path):
        yield


def test_the_pod_of_the_chart_has_a_place_for_the_socket() -> None:
    """`kubectl exec` finds the daemon without any option: its socket is in a directory that the pod mounts writable."""
    daemon = container({})
    mounts = {mount["mountPath"] for mount in daemon["volumeMounts"] if not mount.get("readOnly")}
    assert str(DEFAULT_PLUGIN_DIRECTORY) in mounts
    assert "DEVICE_PLUGIN_PATH" not in {variable["name"] for variable in daemon["env"]}


@pytest.mark.parametrize("options", [(), ("-o", "wide")], ids=["table", "wide"])
async def test_no_name_is_broken_in_80_columns(
    start: Start, kubelet: EmbeddedKubelet, environment: dict[str, str], options: tuple[str, ...]
) -> None:
    """At a terminal of 80 columns each name stands in one line, and no line is longer; a pipe gets whole rows."""
    async with start() as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 48})
        await kubelet.admit(Pod(LONG, [Container("main", {GPU_MEM: 5})], namespace="machine-learning"))
        lines = await asyncio.to_thread(at_a_terminal, ("list", *options), environment)
        piped = await gpushare("list", *options, environment={**environment, "COLUMNS": "20"})
    for name in (GPU_MEM, LONG, "machine-learning"):
        assert any(name in line.split() for line in lines)
        assert any(name in line.split() for line in piped.output.splitlines())
    assert max(map(len, lines)) <= 80
    rows = [line.split()[:6] for line in piped.output.splitlines()]
    assert ["0", "machine-learning", LONG, "main", GPU_MEM, "5"] in rows


def at_a_terminal(arguments: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    """Return the lines that a command prints at a terminal of 80 columns, without blanks at their ends."""
    reader, writer = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    process = subprocess.Popen(
        (sys.executable, "-m", "gpushare_plugin", *arguments),
        env={**inherited, **environment, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    content = b""
    with os.fdopen(reader, "rb", buffering=0) as output, contextlib.suppress(OSError):
        while data := output.read(1 << 16):
            content += data
    assert process.wait() == 0
    return [line.rstrip() for line in content.decode().splitlines()]
