"""Tests of `gpushare run`: the daemon as a process, between a stand-in for NVML and an embedded kubelet."""

import asyncio
import json
import re
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from gpushare_plugin.kubelet.allocations.pod_resources import list_pods
from gpushare_plugin.testing.kubelet import AdmissionError, EmbeddedKubelet, Mount
from gpushare_plugin.testing.nvml import (
    ALL_FUNCTIONS,
    ENVIRONMENT_VARIABLE,
    LIBRARY_NAME,
    ErrorCode,
    FakeConnection,
    FakeGpu,
    FakeNvml,
    Topology,
)
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import (
    Argument,
    ConfigMapMount,
    admit,
    answer,
    assert_log_is_sound,
    bad_log,
    comes_to_answer,
    full_pipe,
    gpushare,
    running,
    without_library,
)

GPU_MEM = "aliyun.com/gpu-mem"
SHARED_GPU = "nvidia.com/gpu.shared"
GPU = "nvidia.com/gpu"

A100 = FakeGpu(memory_mib=40960, reserved_mib=512)
T4 = FakeGpu("Tesla T4", memory_mib=15360, reserved_mib=450, compute_capability=(7, 5), mig_enabled=None)
HANGS_MS = 60_000
WAIT = "nvmlEventSetWait_v2"
"""What a thread calls again and again to wait for events."""

MIXED = """\
version: v1
sharing:
  memory:
    resources:
    - name: aliyun.com/gpu-mem
      devices: [0, 1]
  timeSlicing:
    failRequestsGreaterThanOne: {fail}
    resources:
    - name: nvidia.com/gpu
      rename: nvidia.com/gpu.shared
      devices: [2, 3]
      replicas: 4
"""
MEMORY_IN_GIB = """\
sharing:
  memory:
    resources:
    - name: aliyun.com/gpu-mem
      unit: GiB
"""
QUICK_LOOKS = "health: {rescanSeconds: 0.2, probeSeconds: 0.2}\n"
MIXED_UNITS = {GPU_MEM: 39 + 14, SHARED_GPU: 8, GPU: 4}
WRONG = """\
version: v1
flags:
  migStrategi: none
sharing:
  memory:
    resources:
    - name: aliyun.com/gpu-mem
      devices: [0, 7]
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      devices: [1]
      replicas: 1
"""

TOLD_AGAIN = """\
import atexit, os, signal, sys
class Again:
    def __call__(self, kill=os.kill, pid=os.getpid(), numbers=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
        for number in numbers:
            kill(pid, number)
    __del__ = __call__
sys.last_of_all = Again()
atexit.register(Again())
"""
"""Sends a process every signal that may end it while it ends: before and after its interpreter is taken down."""


@pytest.fixture
def node() -> Iterator[FakeNvml]:
    """Describe a node with a large and a small card."""
    with FakeNvml([A100, T4]) as described:
        yield described


@pytest.fixture
def mixed_node() -> Iterator[FakeNvml]:
    """Describe a node with eight cards of two kinds, of which 5 and 7 are joined."""
    pairs = [(first, second) for first in range(8) for second in range(first)]
    connections = [
        FakeConnection(first, second, Topology.SINGLE_SWITCH if first - second == 1 else Topology.SYSTEM)
        for first, second in pairs
        if (first, second) != (7, 5)
    ]
    with FakeNvml([A100, T4, *[A100] * 6], [*connections, FakeConnection(5, 7, nvlinks=4)]) as described:
        yield described


def written(folder: Path, text: str, name: str = "config.yaml") -> Path:
    """Write a file for the daemon and return its path."""
    path = folder / name
    path.write_text(text)
    return path


OF_USAGE = ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo", "Processes", "Utilization")
"""Parts of the names of functions by which is looked at who uses what, every ten seconds and whatever happens."""


def asked(node: FakeNvml) -> dict[str, int]:
    """Return how often each function of NVML was called to ask something, looks at the usage aside."""
    calls = node.calls().items()
    return {name: times for name, times in calls if name != WAIT and not any(part in name for part in OF_USAGE)}


class TestSharing:
    """What pods get."""

    async def test_a_daemon_without_a_config_shares_every_gpu_by_memory(
        self, node: FakeNvml, kubelet: EmbeddedKubelet
    ) -> None:
        """Usable memory in GiB, cards of different sizes each by its own, and a pod's 5 units are 5 GiB of one card."""
        async with running(kubelet, environment=node.environment) as daemon:
            # 40960 - 512 MiB and 15360 - 450 MiB, in whole GiB.
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            small = await admit(kubelet, GPU_MEM, 5, "gpushare-test-pod")
            assert small.environment == {
                "NVIDIA_VISIBLE_DEVICES": node.gpus[1].uuid,
                "ALIYUN_COM_GPU_MEM_IDX": "1",
                "ALIYUN_COM_GPU_MEM_POD": "5",
                "ALIYUN_COM_GPU_MEM_CONTAINER": "5",
                "ALIYUN_COM_GPU_MEM_DEV": "14",
                "GPUSHARE_MEMORY_LIMIT_MIB": "5120",
                "GPUSHARE_GPU_MEMORY_MIB": "14910",
            }
            large = await admit(kubelet, GPU_MEM, 39, "large")
            assert large.environment["NVIDIA_VISIBLE_DEVICES"] == node.gpus[0].uuid
            assert large.environment["ALIYUN_COM_GPU_MEM_DEV"] == "39"
            assert large.environment["GPUSHARE_GPU_MEMORY_MIB"] == "40448"

    async def test_a_node_can_serve_three_ways_of_sharing(
        self, mixed_node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """Memory, time slices under another name and whole GPUs each serve their own cards."""
        config = written(tmp_path, MIXED.format(fail="false"))
        async with running(kubelet, "--config-file", config, environment=mixed_node.environment) as daemon:
            await daemon.advertises(kubelet, MIXED_UNITS)
            uuids = [gpu.uuid for gpu in mixed_node.gpus]
            by_memory = await admit(kubelet, GPU_MEM, 20, "by-memory")
            assert by_memory.environment["NVIDIA_VISIBLE_DEVICES"] == uuids[0]
            assert by_memory.environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "20480"
            by_turns = [await admit(kubelet, SHARED_GPU, 1, f"by-turns-{number}") for number in range(4)]
            seen = [started.environment["NVIDIA_VISIBLE_DEVICES"] for started in by_turns]
            assert sorted(seen) == sorted([uuids[2], uuids[3]] * 2)
            assert all(started.environment.keys() == {"NVIDIA_VISIBLE_DEVICES"} for started in by_turns)
            two = await admit(kubelet, SHARED_GPU, 2, "two-turns")
            assert two.environment["NVIDIA_VISIBLE_DEVICES"] == f"{uuids[2]},{uuids[3]}"
            # Of 4 to 7, those that NVLink joins, though others are nearer on PCI.
            pair = await admit(kubelet, GPU, 2, "pair")
            assert pair.environment["NVIDIA_VISIBLE_DEVICES"] == f"{uuids[5]},{uuids[7]}"
            assert pair.device_ids[GPU] == {uuids[5], uuids[7]}

    async def test_requests_that_cannot_be_met_tell_the_pod_why(
        self, mixed_node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """The words of the daemon reach the pod's admission error, and the next good request is served."""
        config = written(tmp_path, MIXED.format(fail="true"))
        async with running(kubelet, "--config-file", config, environment=mixed_node.environment) as daemon:
            await daemon.advertises(kubelet, MIXED_UNITS)
            await admit(kubelet, GPU_MEM, 10, "first")
            with pytest.raises(AdmissionError) as refusal:
                await admit(kubelet, GPU_MEM, 40, "too-large")
            assert "40 units (40960 MiB) requested, but no single GPU has as many free" in str(refusal.value)
            assert f"GPU 0 ({mixed_node.gpus[0].uuid}): 39, GPU 1 ({mixed_node.gpus[1].uuid}): 4" in str(refusal.value)
            assert "a request of up to 39 units would fit" in str(refusal.value)
            with pytest.raises(AdmissionError, match=r"at most 1 allowed \(failRequestsGreaterThanOne\)"):
                await admit(kubelet, SHARED_GPU, 2, "greedy")
            assert (await daemon.logged("request_rejected", call="Allocate"))["resource"] == SHARED_GPU
            await admit(kubelet, GPU_MEM, 39, "fits")
            await admit(kubelet, SHARED_GPU, 1, "modest")

    @pytest.mark.parametrize(
        ("options", "variable", "extras"),
        [
            ([], "{uuid}", {}),
            (["--device-id-strategy", "index"], "1", {}),
            (["--pass-device-specs"], "{uuid}", {"devices": "/dev/nvidia1"}),
            (
                ["--device-list-strategy", "volume-mounts"],
                "/var/run/nvidia-container-devices",
                {"mounts": "/var/run/nvidia-container-devices/{uuid}"},
            ),
            (["--device-list-strategy", "cdi-cri"], None, {"cdi_devices": "nvidia.com/gpu={uuid}"}),
            (["--device-list-strategy", "cdi-annotations"], None, {"annotations": "nvidia.com/gpu={uuid}"}),
            (
                [
                    *("--device-list-strategy", "envvar,cdi-cri,cdi-annotations"),
                    *("--pass-device-specs", "--cdi-kind", "example.com/card"),
                ],
                "{uuid}",
                {
                    "devices": "/dev/nvidia1",
                    "cdi_devices": "example.com/card={uuid}",
                    "annotations": "example.com/card={uuid}",
                },
            ),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else None,
    )
    async def test_every_way_into_a_container_arrives(
        self,
        node: FakeNvml,
        kubelet: EmbeddedKubelet,
        options: list[Argument],
        variable: str | None,
        extras: dict[str, str],
    ) -> None:
        """Variables, mounts, device nodes, annotations and CDI devices reach the container that is started."""
        async with running(kubelet, *options, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            started = await admit(kubelet, GPU_MEM, 5)
        uuid = node.gpus[1].uuid
        expected = {way: text.format(uuid=uuid) for way, text in extras.items()}
        assert started.environment.get("NVIDIA_VISIBLE_DEVICES") == (variable and variable.format(uuid=uuid))
        assert started.environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "5120"
        nodes = {device.host_path: device for device in started.devices}
        if "devices" in expected:
            device = nodes[expected["devices"]]
            assert (device.container_path, device.permissions) == (expected["devices"], "rw")
            assert "/dev/nvidia0" not in nodes
        else:
            assert nodes == {}
        mounts = (Mount(expected["mounts"], "/dev/null", read_only=False),) if "mounts" in expected else ()
        assert started.mounts == mounts
        assert started.cdi_devices == ((expected["cdi_devices"],) if "cdi_devices" in expected else ())
        assert list(started.annotations.values()) == ([expected["annotations"]] if "annotations" in expected else [])
        assert all(key.startswith("cdi.k8s.io/") for key in started.annotations)


class TestNvml:
    """What the daemon asks of the driver, and what it does when there is no answer."""

    async def test_nvml_is_initialised_once_and_never_asked_for_a_pod(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """Pods, and the kubelet's restart, are served from memory: the driver is not called for them."""
        config = written(tmp_path, "health: {rescanSeconds: 3600, probeSeconds: 3600}\n" + MEMORY_IN_GIB)
        async with running(kubelet, "--config-file", config, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            await daemon.until(lambda: node.calls()[WAIT], "both cards are watched")
            at_start = asked(node)
            assert at_start["nvmlInitWithFlags"] == 1
            await admit(kubelet, GPU_MEM, 5, "first")
            await kubelet.restart()
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            await admit(kubelet, GPU_MEM, 5, "second")
            assert kubelet.calls["GetPreferredAllocation"] == kubelet.calls["Allocate"] == 2
            assert asked(node) == at_start
        assert asked(node) == at_start

    @pytest.mark.parametrize("function", [ALL_FUNCTIONS, "nvmlDeviceGetMemoryInfo_v2"])
    async def test_a_card_that_does_not_answer_is_left_out(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, function: str
    ) -> None:
        """The card is named in the log with the reason; the others serve."""
        node.fail(0, function, ErrorCode.GPU_IS_LOST)
        async with running(kubelet, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 14})
            left_out = await daemon.logged("gpu_left_out", level="error", index=0)
            assert left_out["reason"] == "GPU is lost"
            assert left_out["uuid"] == (None if function == ALL_FUNCTIONS else node.gpus[0].uuid)
            started = await admit(kubelet, GPU_MEM, 5)
            assert started.environment["NVIDIA_VISIBLE_DEVICES"] == node.gpus[1].uuid

    @pytest.mark.parametrize("lack", ["library", "driver", "cards", "answer"])
    async def test_a_daemon_without_a_gpu_says_why_and_fails(
        self, kubelet: EmbeddedKubelet, tmp_path: Path, lack: str
    ) -> None:
        """No library, no driver, no card, or none that answers: one clear event, exit status 1, nothing registered."""
        failures = {"nvmlInitWithFlags": ErrorCode.DRIVER_NOT_LOADED} if lack == "driver" else {}
        with FakeNvml([] if lack == "cards" else [A100], failures=failures) as node:
            if lack == "answer":
                node.fail(0, ALL_FUNCTIONS, ErrorCode.GPU_IS_LOST)
            environment = without_library(tmp_path) if lack == "library" else node.environment
            async with running(kubelet, environment=environment) as daemon:
                assert await daemon.ended() == 1
                (failure,) = daemon.events("start_failed", level="error")
        reasons = {
            "library": "NVML cannot be used: NVML Shared Library Not Found",
            "driver": "NVML cannot be used: Driver Not Loaded",
            "cards": "no usable GPU on this node: 0 found",
            "answer": "no usable GPU on this node: 1 found but unusable",
        }
        assert failure["reason"].startswith(reasons[lack])
        assert kubelet.registrations == ()

    @pytest.mark.parametrize("lack", ["driver", "answer"])
    async def test_a_patient_daemon_waits_for_its_gpu(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, lack: str
    ) -> None:
        """Without failOnInitError the daemon looks again until a GPU is there, and serves it without a restart."""
        if lack == "driver":
            node.fail(None, "nvmlInitWithFlags", ErrorCode.DRIVER_NOT_LOADED)
        else:
            node.fail(0, ALL_FUNCTIONS, ErrorCode.GPU_IS_LOST)
            node.fail(1, ALL_FUNCTIONS, ErrorCode.GPU_IS_LOST)
        environment = {**node.environment, "FAIL_ON_INIT_ERROR": "false"}
        async with running(kubelet, environment=environment) as daemon:
            reason = (await daemon.logged("waiting_for_gpus"))["reason"]
            assert {"driver": "Driver Not Loaded", "answer": "2 found but unusable"}[lack] in reason
            assert kubelet.registrations == ()
            for gpu in (None, 0, 1):
                node.recover(gpu)
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            await admit(kubelet, GPU_MEM, 5)
            assert len(daemon.events("starting")) == 1

    async def test_a_driver_may_be_installed_later(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """The library appears below the driver root, as a driver container puts it there, and is used."""
        environment = {**without_library(tmp_path), ENVIRONMENT_VARIABLE: str(node.path)}
        root = tmp_path / "driver-root"
        options = ("--fail-on-init-error=false", "--container-driver-root", root)
        async with running(kubelet, *options, environment=environment) as daemon:
            await daemon.logged("waiting_for_gpus")
            (root / "usr/lib64").mkdir(parents=True)
            shutil.copy(node.library, root / "passing")
            (root / "passing").rename(root / "usr/lib64" / LIBRARY_NAME)
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})

    async def test_registering_does_not_wait_for_probes(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """While what serves HTTP is still being imported, units are offered already."""
        registered, port = tmp_path / "registered", claim_port()
        written(tmp_path, SLOW_AIOHTTP.format(registered=registered, folder=tmp_path), "aiohttp.py")
        environment = {**node.environment, "PYTHONPATH": str(tmp_path)}
        async with running(kubelet, "--http-address", f"127.0.0.1:{port}", environment=environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            registered.touch()
            assert await answer(port, "/healthz") == (200, "ok\n")

    async def test_simulated_gpus_need_no_nvml(self, kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
        """With a file of GPUs there is no driver to have: not even the module that speaks to it is imported."""
        written(tmp_path, "raise SystemExit('pynvml was imported')", "pynvml.py")
        gpus = written(tmp_path, "gpus:\n- memory: 16GiB\n  count: 2\n", "gpus.yaml")
        environment = {**without_library(tmp_path), "PYTHONPATH": str(tmp_path), "SIMULATE": str(gpus)}
        async with running(kubelet, environment=environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 32})
            assert (await admit(kubelet, GPU_MEM, 16)).environment["ALIYUN_COM_GPU_MEM_DEV"] == "16"


SLOW_AIOHTTP = """
import importlib, pathlib, sys, time
while not pathlib.Path("{registered}").exists():
    time.sleep(0.01)
sys.path.remove("{folder}")
del sys.modules["aiohttp"]
sys.modules["aiohttp"] = importlib.import_module("aiohttp")
"""
"""In place of aiohttp: becomes it once a file is there."""


class TestSettings:
    """What happens with right and wrong settings."""

    async def test_every_mistake_is_logged_and_nothing_is_registered(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """Mistakes in the file and in options are told at once, each in a line with its place."""
        config = written(tmp_path, WRONG)
        options = ("--config-file", config, "--cdi-kind", "nonsense")
        async with running(kubelet, *options, environment=node.environment) as daemon:
            assert await daemon.ended() == 1
            reasons = [failure["problem"] for failure in daemon.events("start_failed", level="error")]
        expected = [
            (f"{config}:3:3: flags.migStrategi: ", 'did you mean "migStrategy"'),
            (f"{config}:13:17: sharing.timeSlicing.resources[0].replicas: ", "found 1"),
            ("--cdi-kind: flags.plugin.cdiKind: ", 'found "nonsense"'),
        ]
        for reason, (place, message) in zip(reasons, expected, strict=True):
            assert reason.startswith(place)
            assert message in reason
        assert kubelet.registrations == ()
        assert [path.name for path in kubelet.plugin_directory.glob("*.sock")] == ["kubelet.sock"]

    async def test_mistakes_that_only_gpus_show_are_logged_once_the_file_is_right(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """A file without mistakes that does not suit this node's GPUs: each mistake has its place, too."""
        right = WRONG.replace("migStrategi", "migStrategy").replace("replicas: 1", "replicas: 2")
        config = written(tmp_path, right)
        async with running(kubelet, "--config-file", config, environment=node.environment) as daemon:
            assert await daemon.ended() == 1
            (failure,) = daemon.events("start_failed", level="error")
        assert failure["problem"].startswith(f"{config}:8:7: sharing.memory.resources[0].devices: ")
        assert "matches no GPU" in failure["problem"]
        assert kubelet.registrations == ()

    @pytest.mark.parametrize("patient", ["true", "false"])
    async def test_wrong_settings_are_not_held_back_by_a_missing_gpu(
        self, kubelet: EmbeddedKubelet, tmp_path: Path, patient: str
    ) -> None:
        """What is wrong anyway is told at once, also where the daemon would wait for a GPU."""
        environment = {**without_library(tmp_path), "MIG_STRATEGY": "sometimes"}
        async with running(kubelet, f"--fail-on-init-error={patient}", environment=environment) as daemon:
            assert await daemon.ended() == 1
            (failure,) = daemon.events("start_failed")
        assert failure["problem"].startswith("MIG_STRATEGY (environment): flags.migStrategy: ")

    @pytest.mark.parametrize("content", [None, "", "sharing: ["])
    async def test_a_file_that_cannot_be_read_is_told_in_the_log(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path, content: str | None
    ) -> None:
        """A file that is missing, empty or no YAML is an event of the log as any other mistake."""
        config = tmp_path / "config.yaml"
        if content is not None:
            config.write_text(content)
        async with running(kubelet, "--config-file", config, environment=node.environment) as daemon:
            assert await daemon.ended() == 1
            (failure,) = daemon.events("start_failed", level="error")
        assert failure["problem"].startswith(str(config))

    @pytest.mark.parametrize("loudest", ["file", "environment", "option"])
    async def test_options_beat_the_environment_which_beats_the_file(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path, loudest: str
    ) -> None:
        """Each source that speaks is heard over the ones below it, as a container shows."""
        plugin = "flags:\n  plugin:\n    deviceIDStrategy: index\n    deviceListStrategy: volume-mounts\n"
        config = written(tmp_path, f"version: v1\n{plugin}sharing:\n  memory:\n    resources: [{{name: {GPU_MEM}}}]\n")
        environment, options = dict(node.environment), ["--config-file", str(config)]
        if loudest != "file":
            environment |= {"DEVICE_ID_STRATEGY": "uuid", "DEVICE_LIST_STRATEGY": "envvar"}
        if loudest == "option":
            options += ["--device-id-strategy", "index", "--device-list-strategy", "envvar,cdi-cri"]
        async with running(kubelet, *options, environment=environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            started = await admit(kubelet, GPU_MEM, 5)
        seen = (started.environment["NVIDIA_VISIBLE_DEVICES"], len(started.mounts), started.cdi_devices)
        assert (
            seen
            == {
                "file": ("/var/run/nvidia-container-devices", 1, ()),
                "environment": (node.gpus[1].uuid, 0, ()),
                "option": ("1", 0, ("nvidia.com/gpu=1",)),
            }[loudest]
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
class TestSignals:
    """SIGTERM and SIGINT end the daemon whatever it is doing; each stop also has a bound on its time."""

    async def test_a_daemon_that_serves_ends_in_good_order(
        self, mixed_node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path, number: signal.Signals
    ) -> None:
        """With streams open, the end is exit status 0, and every socket is gone."""
        config = written(tmp_path, MIXED.format(fail="true"))
        async with running(kubelet, "--config-file", config, environment=mixed_node.environment) as daemon:
            await daemon.advertises(kubelet, MIXED_UNITS)
            assert len(list(kubelet.plugin_directory.glob("gpushare-*.sock"))) == 3
            assert await daemon.stop(number) == 0
            assert [path.name for path in kubelet.plugin_directory.glob("*.sock")] == ["kubelet.sock"]
            assert daemon.events("stopping", reason=number.name)
            assert daemon.log[-1]["event"] == "stopped"
            await kubelet.wait_for(lambda node: not any(node.allocatable().values()))

    async def test_a_daemon_that_waits_for_a_gpu_ends_in_good_order(
        self, kubelet: EmbeddedKubelet, tmp_path: Path, number: signal.Signals
    ) -> None:
        """The wait for a GPU is given up."""
        options = ("--fail-on-init-error", "false")
        async with running(kubelet, *options, environment=without_library(tmp_path)) as daemon:
            await daemon.logged("waiting_for_gpus")
            assert await daemon.stop(number) == 0

    async def test_a_daemon_whose_driver_hangs_ends_in_good_order(
        self, kubelet: EmbeddedKubelet, number: signal.Signals
    ) -> None:
        """A call of the driver that does not return is left behind."""
        with FakeNvml(init_delay_ms=HANGS_MS) as node:
            async with running(kubelet, environment=node.environment) as daemon:
                await daemon.until(lambda: node.calls()["nvmlInitWithFlags"], "the call of the driver")
                assert await daemon.stop(number) == 0

    async def test_a_daemon_that_the_kubelet_refuses_ends_in_good_order(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, number: signal.Signals
    ) -> None:
        """Between two attempts to register the end is as clean as ever."""
        kubelet.refuse_registrations("not yet")
        async with running(kubelet, environment=node.environment) as daemon:
            assert "not yet" in (await daemon.logged("registration_failed"))["reason"]
            await kubelet.wait_for(lambda seen: len(seen.registrations) >= 3)
            assert len(daemon.events("registration_failed")) == 1, "said once, not each time"
            assert await daemon.stop(number) == 0
            assert [path.name for path in kubelet.plugin_directory.glob("*.sock")] == ["kubelet.sock"]

    async def test_a_daemon_without_a_kubelet_ends_in_good_order(
        self, node: FakeNvml, short_path: Path, number: signal.Signals
    ) -> None:
        """Without any kubelet the daemon serves, waits, and ends."""
        kubelet = EmbeddedKubelet(short_path)
        kubelet.plugin_directory.mkdir()
        async with running(kubelet, environment=node.environment) as daemon:
            await daemon.logged("resource_serving")
            await daemon.logged("kubelet_missing")
            assert await daemon.stop(number) == 0
            assert [path.name for path in kubelet.plugin_directory.iterdir()] == ["gpushare.lock"]

    async def test_a_daemon_told_to_end_again_and_again_ends_as_if_told_once(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path, number: signal.Signals
    ) -> None:
        """However late it is told again: exit status 0, sockets gone."""
        environment = {**node.environment, "PYTHONPATH": str(written(tmp_path, TOLD_AGAIN, "sitecustomize.py").parent)}
        async with running(kubelet, environment=environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            for _ in range(3):
                daemon.process.send_signal(number)
            assert await daemon.stop(number) == 0
            assert daemon.log[-1]["event"] == "stopped"
            assert [path.name for path in kubelet.plugin_directory.glob("*.sock")] == ["kubelet.sock"]


class TestRestarts:
    """Either side may end at any time; pods keep what they have."""

    async def test_units_come_back_with_the_same_ids_after_a_restart_of_the_kubelet(
        self, node: FakeNvml, kubelet: EmbeddedKubelet
    ) -> None:
        """After each restart, clean or not, all units are back under the same IDs, and pods hold what they held."""
        async with running(kubelet, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            ids = kubelet.healthy(GPU_MEM)
            held = (await admit(kubelet, GPU_MEM, 5)).device_ids[GPU_MEM]
            for graceful in (True, False):
                await kubelet.stop(graceful=graceful)
                await daemon.logged("device_list_stream_ended")
                await kubelet.start()
                await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
                assert kubelet.healthy(GPU_MEM) == ids
                assert kubelet.allocated(GPU_MEM) == held

    async def test_a_daemon_takes_over_from_a_daemon_that_was_killed(
        self, node: FakeNvml, kubelet: EmbeddedKubelet
    ) -> None:
        """A daemon without memory of its own takes over: same IDs, the pods' shares stay taken, the rest can be had."""
        everything = {GPU_MEM: 39 + 14}
        async with running(kubelet, environment=node.environment) as first:
            await first.advertises(kubelet, everything)
            ids = kubelet.healthy(GPU_MEM)
            held = (await admit(kubelet, GPU_MEM, 30, "old")).device_ids[GPU_MEM]
            assert await first.stop(signal.SIGKILL) == -signal.SIGKILL
            await kubelet.wait_for(lambda node: not any(node.allocatable().values()))
        async with running(kubelet, environment=node.environment) as second:
            await second.advertises(kubelet, everything)
            assert kubelet.healthy(GPU_MEM) == ids
            with pytest.raises(
                AdmissionError, match=r"GPU 0 .*: 9, GPU 1 .*: 14; a request of up to 14 units would fit"
            ):
                await admit(kubelet, GPU_MEM, 15, "too-large")
            new = (await admit(kubelet, GPU_MEM, 9, "new")).device_ids[GPU_MEM]
            assert not new & held
            holdings = {
                holding.pod: holding.ids for holding in (await list_pods(kubelet.pod_resources_socket)).holdings
            }
            assert holdings == {"old": held, "new": new}
            assert kubelet.allocated(GPU_MEM) == held | new


async def dropped_lines(port: int) -> float:
    """Return how many lines of the log the daemon says are lost."""
    _, page = await answer(port, "/metrics")
    (dropped,) = re.findall(r"^gpushare_log_lines_dropped_total (.*)$", page, re.MULTILINE)
    return float(dropped)


class TestLog:
    """What the daemon prints."""

    async def test_the_log_tells_the_node_and_every_gpu(self, node: FakeNvml, kubelet: EmbeddedKubelet) -> None:
        """Driver, CUDA and what matters of each card stand in the log, one event a line."""
        async with running(kubelet, environment=node.environment) as daemon:
            await daemon.logged("resource_registered", resource=GPU_MEM, count=39 + 14)
            (software,) = daemon.events("node_detected")
            assert (software["version"], software["cuda"]) == ("570.86.15", "12.8")
            cards = daemon.events("gpu_detected", level="info")
        assert [(card["uuid"], card["memory_mib"]) for card in cards] == [
            (node.gpus[0].uuid, 40448),
            (node.gpus[1].uuid, 14910),
        ]
        assert_log_is_sound(daemon)

    async def test_settings_without_effect_are_warnings(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """Settings that are accepted and not served are named, and the daemon serves the others."""
        config = written(tmp_path, "version: v1\nflags:\n  gfd:\n    oneshot: true\n")
        async with running(kubelet, "--config-file", config, environment=node.environment) as daemon:
            warned = await daemon.logged("warning", level="warning")
            assert warned["reason"].startswith("flags.gfd belongs to GPU feature discovery")
            await daemon.advertises(kubelet, {GPU: 2})

    async def test_a_vanished_kubelet_makes_no_noise(self, node: FakeNvml, kubelet: EmbeddedKubelet) -> None:
        """A kubelet that was killed leaves a dead socket; attempts to reach it are events, gRPC itself is silent."""
        async with running(kubelet, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            await kubelet.stop(graceful=False)
            kubelet.socket.touch()
            await daemon.logged("registration_failed")
        assert_log_is_sound(daemon)

    async def test_the_level_of_the_log_silences_and_the_format_is_for_people(
        self, node: FakeNvml, kubelet: EmbeddedKubelet
    ) -> None:
        """Only events as grave as asked for are printed; `console` prints text."""
        async with running(kubelet, "--log-level", "error", environment=node.environment) as quiet:
            await quiet.advertises(kubelet, {GPU_MEM: 39 + 14})
        assert quiet.log == []
        # Its text is noise to whoever expects JSON, so this one is only looked at after its end.
        environment = {**node.environment, "MIG_STRATEGY": "sometimes"}
        spoken = await gpushare("run", "--log-format", "console", environment=environment)
        assert spoken.status == 1
        assert "start_failed" in spoken.errors
        assert not spoken.errors.startswith("{")

    @pytest.mark.parametrize("kind", ["full disk", "reader gone", "nobody reads"])
    async def test_a_log_that_takes_nothing_stops_nothing(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, kind: str
    ) -> None:
        """Pods and probes are served, and the end is in good order, whatever becomes of the lines."""
        port = claim_port()
        options = ("--http-address", f"127.0.0.1:{port}")
        with bad_log(kind) as log:
            async with running(kubelet, *options, environment=node.environment, log=log) as daemon:
                await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
                await admit(kubelet, GPU_MEM, 5)
                assert await answer(port, "/healthz") == (200, "ok\n")
                if kind == "nobody reads":
                    assert await dropped_lines(port) == 0, "lines that wait are not lost yet"
                else:
                    while not await dropped_lines(port):  # another thread writes them
                        assert not daemon.gone, daemon
                assert await daemon.stop() == 0

    async def test_lines_wait_for_a_reader(self, node: FakeNvml, kubelet: EmbeddedKubelet) -> None:
        """What was logged while nobody read is there, whole and in order, for a reader who comes later."""
        reader, writer = full_pipe()
        with reader, writer:
            async with running(kubelet, environment=node.environment, log=writer.fileno()) as daemon:
                writer.close()
                await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
                events = await asyncio.to_thread(_events_until, reader, "resource_registered")
                reading = asyncio.create_task(asyncio.to_thread(_events_until, reader, "stopped"))
                assert await daemon.stop() == 0
                assert events[0] == "starting"
                assert (await reading)[-1] == "stopped"
                assert await asyncio.to_thread(reader.read) == b""

    async def test_a_line_that_was_cut_does_not_spoil_the_next(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """Once a file can grow again, lines are whole again, and the log tells how many were lost."""
        file = tmp_path / "log"
        with file.open("wb") as log:
            async with running(kubelet, environment=node.environment, log=log.fileno()) as daemon:
                await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
                await daemon.until(lambda: b"resource_registered" in file.read_bytes(), "the log is quiet")
                pid, size = daemon.process.pid, file.stat().st_size + 20
                _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))
                daemon.process.send_signal(signal.SIGHUP)
                await daemon.until(lambda: file.stat().st_size == size, "a line was cut")
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
                daemon.process.send_signal(signal.SIGHUP)
                await daemon.until(lambda: b"log_lines_lost" in file.read_bytes(), "the loss is told")
        lines = file.read_bytes().splitlines()
        (cut,) = [number for number, line in enumerate(lines) if not line.endswith(b"}")]
        events = [json.loads(line) for number, line in enumerate(lines) if number != cut]
        (lost,) = [event for event in events if event["event"] == "log_lines_lost"]
        assert (lost["count"], lost["level"]) == (1, "warning")
        assert events[-1]["event"] == "stopped"

    async def test_a_crash_is_logged_with_its_stack(self, kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
        """A defect that ends the daemon is an event with its stack, and exit status 1."""
        written(tmp_path, "raise RuntimeError('nobody thought of this')", "pynvml.py")
        done = await gpushare(
            "run", "--device-plugin-path", kubelet.plugin_directory, environment={"PYTHONPATH": str(tmp_path)}
        )
        assert (done.status, done.output) == (1, "")
        *_, last = map(json.loads, done.errors.splitlines())
        assert (last["event"], last["level"]) == (
            "unexpected_error",
            "error",
        )
        assert "nobody thought of this" in json.dumps(last["exception"])

    async def test_few_file_descriptors_fill_no_log(self, node: FakeNvml, kubelet: EmbeddedKubelet) -> None:
        """Connections that find no descriptor free cost one line, not a stack each; once some are free, all is well."""
        port = claim_port()
        options = ("--http-address", f"127.0.0.1:{port}")
        async with running(kubelet, *options, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            assert await answer(port, "/healthz") == (200, "ok\n")
            pid = daemon.process.pid
            _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, most))
            waiting = [asyncio.create_task(answer(port, "/healthz")) for _ in range(8)]
            told = await daemon.logged("event_loop_error", level="error")
            assert "Too many open files" in told["error"]
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
            assert await asyncio.gather(*waiting) == [(200, "ok\n")] * 8
            assert len(daemon.events("event_loop_error")) == 1


def library_below(folder: Path, node: FakeNvml) -> Path:
    """Put a copy of the stand-in for NVML in a folder, in place of one that may be there, as an upgrade does."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "new"
    shutil.copy(node.library, new)
    return new.replace(folder / LIBRARY_NAME)


class TestUpgrade:
    """A driver that is upgraded under a daemon that runs: only a new process can load the new library."""

    CHANGED = "driver_changed"

    @pytest.mark.parametrize("below_root", [False, True])
    async def test_another_library_ends_the_daemon_in_good_order(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, short_path: Path, *, below_root: bool
    ) -> None:
        """Replaced where the loader or the driver root has it, the library ends the process; pods keep their units."""
        library = library_below(short_path / "usr/lib64", node)
        config = written(short_path, QUICK_LOOKS + MEMORY_IN_GIB)
        arguments: list[Argument] = ["--config-file", config]
        environment = {ENVIRONMENT_VARIABLE: str(node.path), "LD_LIBRARY_PATH": str(library.parent)}
        if below_root:
            arguments += ["--container-driver-root", short_path]
            environment["LD_LIBRARY_PATH"] = str(short_path / "nothing")
        async with running(kubelet, *arguments, environment=environment) as old:
            await old.advertises(kubelet, {GPU_MEM: 39 + 14})
            held = await admit(kubelet, GPU_MEM, 5)
            library.unlink()  # between the old and the new one there is none for a while
            looks = node.calls()["nvmlDeviceGetCount_v2"]
            await old.until(lambda: node.calls()["nvmlDeviceGetCount_v2"] > looks + 2, "looks without a library")
            assert not old.events(self.CHANGED)
            library_below(library.parent, node)
            assert await old.ended() == 1
            (changed,) = old.events(self.CHANGED, level="error")
            assert f"{library} is not the file that this process has loaded" in changed["reason"]
            assert {path.name for path in kubelet.plugin_directory.glob("*.sock")} == {"kubelet.sock"}
        async with running(kubelet, *arguments, environment=environment) as new:
            await new.advertises(kubelet, {GPU_MEM: 39 + 14})
            (holding,) = (await list_pods(kubelet.pod_resources_socket)).holdings
            assert set(holding.ids) == held.device_ids[GPU_MEM]

    @pytest.mark.parametrize("function", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo_v2"])
    async def test_a_driver_of_another_version_ends_the_daemon_in_good_order(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, short_path: Path, function: str
    ) -> None:
        """NVML's word that library and driver do not match is for a new process, whatever was asked."""
        port = claim_port()
        config = written(short_path, QUICK_LOOKS + MEMORY_IN_GIB)
        arguments: list[Argument] = ["--config-file", config, "--http-address", f"127.0.0.1:{port}"]
        async with running(kubelet, *arguments, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            assert await answer(port, "/healthz") == (200, "ok\n")
            node.fail(None, function, ErrorCode.LIB_RM_VERSION_MISMATCH)
            assert await daemon.ended() == 1
            (changed,) = daemon.events(self.CHANGED, level="error")
            assert "different versions of the driver and its library" in changed["reason"]
            assert {path.name for path in kubelet.plugin_directory.glob("*.sock")} == {"kubelet.sock"}

    @pytest.mark.parametrize("patient", [False, True])
    async def test_a_driver_of_another_version_at_the_start_ends_the_daemon(
        self, kubelet: EmbeddedKubelet, *, patient: bool
    ) -> None:
        """A process that begins with the wrong library never has the right one, so even a patient daemon ends."""
        with FakeNvml(failures={"nvmlInitWithFlags": ErrorCode.LIB_RM_VERSION_MISMATCH}) as node:
            fail = f"--fail-on-init-error={str(not patient).lower()}"
            async with running(kubelet, fail, environment=node.environment) as daemon:
                assert await daemon.ended() == 1
                assert daemon.events(self.CHANGED, level="error")
        assert kubelet.registrations == ()


class TestLife:
    """What changes while the daemon runs."""

    async def test_an_edited_file_is_followed(self, node: FakeNvml, kubelet: EmbeddedKubelet, short_path: Path) -> None:
        """Through the links of a ConfigMap mount: good settings are taken over, bad ones refused, nothing restarts."""
        mount = ConfigMapMount(short_path / "config", MEMORY_IN_GIB)
        async with running(kubelet, "--config-file", str(mount.file), environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            mount.write(MEMORY_IN_GIB.replace("unit: GiB", "unit: GB"))
            refused = await daemon.logged("config_rejected")
            assert 'did you mean "GiB"' in refused["problem"]
            mount.write(MEMORY_IN_GIB + "      placement: spread\n")
            changed = await daemon.logged("config_changed")
            assert changed["change"] == "sharing.memory.resources[0].placement: binpack -> spread"
            assert kubelet.allocatable() == {GPU_MEM: 39 + 14}
            assert len(kubelet.registrations) == 1

    async def test_sighup_reads_the_file_again(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, short_path: Path
    ) -> None:
        """Whoever cannot wait for the next look says so."""
        file = short_path / "config.yaml"
        file.write_text(MEMORY_IN_GIB)
        async with running(kubelet, "--config-file", str(file), environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            file.write_text(MEMORY_IN_GIB + "      placement: spread\n")
            daemon.process.send_signal(signal.SIGHUP)
            await daemon.logged("config_changed")

    async def test_an_xid_takes_a_gpu_out_and_recovery_brings_it_back(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, short_path: Path
    ) -> None:
        """From the driver's event to the kubelet's account, and back once the card has answered long enough."""
        file = short_path / "config.yaml"
        file.write_text("health: {goodProbes: 2, probeSeconds: 0.2}\n" + MEMORY_IN_GIB)
        async with running(kubelet, "--config-file", str(file), environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            await daemon.until(lambda: node.calls()["nvmlDeviceRegisterEvents"] >= 2, "both cards are watched")
            node.raise_event(0, data=56)
            await daemon.logged("gpu_unhealthy")
            await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 14})
            await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 39 + 14})
            assert len(kubelet.registrations) == 1

    async def test_random_xids_do_not_fill_the_log(self, node: FakeNvml, kubelet: EmbeddedKubelet) -> None:
        """A thousand XIDs that nobody has heard of are some lines; what they mean is not lost for the other card."""
        async with running(kubelet, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            await daemon.until(lambda: node.calls()["nvmlDeviceRegisterEvents"] >= 2, "both cards are watched")
            for number in range(1000):
                node.raise_event(0, data=10_000 + number)
            node.raise_event(1, data=79)
            await daemon.advertises(kubelet, {GPU_MEM: 0})
            assert len(daemon.events("gpu_event")) < 600

    async def test_a_second_daemon_refuses_to_start(self, node: FakeNvml, kubelet: EmbeddedKubelet) -> None:
        """It says which process serves the directory; the first is unharmed."""
        async with running(kubelet, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            arguments = ("run", "--device-plugin-path", str(kubelet.plugin_directory))
            second = await gpushare(*arguments, environment=node.environment)
            assert second.status == 1
            assert f"process {daemon.process.pid}" in second.errors
            await admit(kubelet, GPU_MEM, 5)
            assert len(kubelet.registrations) == 1

    async def test_probes_tell_whether_the_daemon_lives_and_is_ready(
        self, node: FakeNvml, kubelet: EmbeddedKubelet
    ) -> None:
        """Alive from the start; ready when the kubelet listens, and not while it is away."""
        port = claim_port()
        async with running(kubelet, "--http-address", f"127.0.0.1:{port}", environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            assert await answer(port, "/healthz") == (200, "ok\n")
            await comes_to_answer(port, "/readyz", (200, "ok\n"))
            (ours,) = kubelet.plugin_directory.glob("gpushare-*.sock")
            ours.rename(ours.with_name("gone"))
            assert await answer(port, "/readyz") == (503, f"{GPU_MEM}: not registered with the kubelet\n")
            await daemon.logged("resource_registered", times=2)
            await daemon.advertises(kubelet, {GPU_MEM: 39 + 14})
            await kubelet.stop()
            await daemon.logged("device_list_stream_ended")
            assert await answer(port, "/readyz") == (503, f"{GPU_MEM}: not registered with the kubelet\n")
            assert await answer(port, "/healthz") == (200, "ok\n")

    async def test_probes_are_answered_before_there_is_a_gpu(self, kubelet: EmbeddedKubelet) -> None:
        """A driver that takes its time makes a node that is alive and not ready; one without GPUs has nothing to do."""
        port = claim_port()
        arguments = ("--http-address", f"127.0.0.1:{port}", "--fail-on-init-error=false")
        with FakeNvml(init_delay_ms=HANGS_MS) as slow:
            async with running(kubelet, *arguments, environment=slow.environment) as daemon:
                await daemon.until(lambda: slow.calls()["nvmlInitWithFlags"], "the call of the driver")
                assert await answer(port, "/healthz") == (200, "ok\n")
                assert await answer(port, "/readyz") == (503, "no GPU of this node has answered yet\n")
        with FakeNvml(failures={"nvmlInitWithFlags": ErrorCode.DRIVER_NOT_LOADED}) as none:
            async with running(kubelet, *arguments, environment=none.environment) as daemon:
                await daemon.logged("waiting_for_gpus")
                assert await answer(port, "/healthz") == (200, "ok\n")
                await comes_to_answer(port, "/readyz", (200, "ok\n"))

    async def test_units_held_from_before_a_kill_are_kept_from_new_settings(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, short_path: Path
    ) -> None:
        """Sockets of the killed daemon are cleared away, and a new way of sharing does not get units of its pods."""
        environment = node.environment
        async with running(kubelet, environment=environment) as first:
            await first.advertises(kubelet, {GPU_MEM: 39 + 14})
            await admit(kubelet, GPU_MEM, 20)  # only the large card can give so much
            await first.stop(signal.SIGKILL)
        assert list(kubelet.plugin_directory.glob("gpushare-*.sock"))
        whole = written(short_path, "sharing: {}\n")
        async with running(kubelet, "--config-file", whole, environment=environment) as second:
            await second.advertises(kubelet, {GPU: 1, GPU_MEM: 0})
            assert [path.name for path in kubelet.plugin_directory.glob("gpushare-*.sock")] == [
                "gpushare-nvidia.com_gpu.sock"
            ]
            await second.stop(signal.SIGKILL)
        kubelet.delete(next(iter(kubelet.pods.values())))
        await kubelet.restart()
        async with running(kubelet, environment=environment) as third:
            await third.advertises(kubelet, {GPU_MEM: 39 + 14, GPU: 0})
            assert {path.name for path in kubelet.plugin_directory.glob("gpushare-*.sock")} == {
                "gpushare-aliyun.com_gpu-mem.sock"
            }


def _events_until(log: BinaryIO, event: str) -> list[str]:
    """Read the names of the events that a daemon logs, up to this one; all there are if the log ends without."""
    events: list[str] = []
    for line in log:
        if line != b"\n":  # what the pipe was full of
            events.append(json.loads(line)["event"])
            if events[-1] == event:
                break
    return events
