"""Tests of `gpushare` on cards in MIG mode: the command as a process, a stand-in for NVML and an embedded kubelet."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.gpus.exchange import read_message, write_message
from gpushare_plugin.mig.exchange import MigOrder, MigRoot, MigStatus, WantedCard
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.slices.wanted import WANTED_SLICES, Wanted, encode
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import AdmissionError, EmbeddedKubelet
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu, FakeMigInstance, FakeNvml, FakeProcess
from tests.process.daemon import Daemon, admit, gpushare, process, running
from tests.unit.kube.cluster import NODE, a_node, annotate, label

GPU = "nvidia.com/gpu"
SMALL, LARGE = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
MIXED = """\
version: v1
flags:
  migStrategy: mixed
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/mig-1g.5gb
      rename: nvidia.com/mig-1g.5gb.shared
      devices: ["0:1"]
      replicas: 4
"""


def a_card(*profiles: str) -> FakeGpu:
    """Describe a card in MIG mode."""
    return FakeGpu(mig_enabled=True, mig_instances=tuple(FakeMigInstance(profile) for profile in profiles))


async def test_seven_pods_have_instances_of_one_card(kubelet: EmbeddedKubelet) -> None:
    """Seed 004: a card is up to seven GPUs; under `single` each pod that asks for a GPU has an instance of its own."""
    with FakeNvml([a_card(*["1g.5gb"] * 7)]) as node:
        environment = {**node.environment, "MIG_STRATEGY": "single"}
        async with running(kubelet, environment=environment) as daemon:
            await daemon.advertises(kubelet, {GPU: 7})
            pods = [await admit(kubelet, GPU, 1, f"pod-{number}") for number in range(7)]
            seen = {pod.environment["NVIDIA_VISIBLE_DEVICES"] for pod in pods}
            assert seen == {instance.uuid for instance in node.gpus[0].mig_instances}
            with pytest.raises(AdmissionError):
                await admit(kubelet, GPU, 1, "eighth")


async def test_whole_and_sliced_instances_are_offered_beside_a_card(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """Under `mixed` each profile is a resource, an instance named in the settings is sliced, a card is a GPU."""
    config = tmp_path / "config.yaml"
    config.write_text(MIXED)
    with FakeNvml([a_card("3g.20gb", "1g.5gb", "1g.5gb"), FakeGpu()]) as node:
        large, sliced, small = (instance.uuid for instance in node.gpus[0].mig_instances)
        async with running(kubelet, "--config-file", config, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {LARGE: 1, SMALL: 1, f"{SMALL}.shared": 4, GPU: 1})
            whole = await admit(kubelet, SMALL, 1, "whole")
            assert whole.environment == {"NVIDIA_VISIBLE_DEVICES": small}
            assert whole.device_ids == {SMALL: {small}}
            slices = [await admit(kubelet, f"{SMALL}.shared", 1, f"slice-{number}") for number in range(4)]
            assert {pod.environment["NVIDIA_VISIBLE_DEVICES"] for pod in slices} == {sliced}
            assert {id_ for pod in slices for id_ in pod.device_ids[f"{SMALL}.shared"]} == {
                f"{sliced}::{number}" for number in range(4)
            }
            assert (await admit(kubelet, LARGE, 1, "large")).environment == {"NVIDIA_VISIBLE_DEVICES": large}
            assert (await admit(kubelet, GPU, 1, "card")).environment == {"NVIDIA_VISIBLE_DEVICES": node.gpus[1].uuid}


async def test_a_container_gets_the_device_nodes_of_card_and_instance(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """With `passDeviceSpecs` a container gets the card's node and the instance's two capabilities."""
    gpus = tmp_path / "gpus.yaml"
    gpus.write_text("gpus: [{memory: 40GiB}, {memory: 40GiB, mig: [3g.20gb]}]")
    arguments = ("--simulate", gpus, "--mig-strategy", "mixed", "--pass-device-specs", "--device-id-strategy", "index")
    async with running(kubelet, *arguments) as daemon:
        await daemon.advertises(kubelet, {"aliyun.com/gpu-mem": 40, LARGE: 1})
        pod = await admit(kubelet, LARGE, 1)
        assert pod.environment["NVIDIA_VISIBLE_DEVICES"] == "1:0"
        paths = [device.container_path for device in pod.devices]
        card, *capabilities = [path for path in paths if path not in {"/dev/nvidiactl", "/dev/nvidia-modeset"}][-3:]
        assert card == "/dev/nvidia1"
        assert capabilities == ["/dev/nvidia-caps/nvidia-cap147", "/dev/nvidia-caps/nvidia-cap148"]


async def test_a_node_that_single_cannot_serve_is_refused(kubelet: EmbeddedKubelet) -> None:
    """Nothing is registered, and the reason is told for each GPU."""
    with FakeNvml([a_card("3g.20gb", "1g.5gb"), FakeGpu(), a_card()]) as node:
        async with running(kubelet, environment={**node.environment, "MIG_STRATEGY": "single"}) as daemon:
            reason = (await daemon.logged("start_failed"))["problem"]
            assert await daemon.ended() == 1
        assert reason.startswith("MIG_STRATEGY (environment): flags.migStrategy: ")
        for gpu, what in zip(node.gpus, ("1 x 3g.20gb, 1 x 1g.5gb", "not in MIG mode", "no MIG instance"), strict=True):
            assert f"({gpu.uuid})" in reason
            assert what in reason
        assert kubelet.allocatable() == {}


async def test_an_instance_that_does_not_answer_stops_no_other(kubelet: EmbeddedKubelet) -> None:
    """The node serves what answers, and `list` shows what does not."""
    broken = FakeMigInstance(failures={"nvmlDeviceGetAttributes_v2": ErrorCode.UNKNOWN})
    with FakeNvml([FakeGpu(mig_enabled=True, mig_instances=(broken, FakeMigInstance("3g.20gb")))]) as node:
        environment = {**node.environment, "MIG_STRATEGY": "mixed"}
        async with running(kubelet, environment=environment) as daemon:
            await daemon.advertises(kubelet, {LARGE: 1})
        listed = await gpushare("list", environment=environment)
        lines = [line.split() for line in listed.output.splitlines()]
        assert [line[0] for line in lines[:4]] == ["GPU", "0", "0:1", "0:0"]
        assert "unresponsive: Unknown Error" in listed.output


async def test_check_config_tells_where_instances_go(tmp_path: Path) -> None:
    """Instances are named by card and number."""
    config = tmp_path / "config.yaml"
    config.write_text(MIXED)
    with FakeNvml([a_card("3g.20gb", "1g.5gb", "1g.5gb"), FakeGpu()]) as node:
        checked = await gpushare("check-config", config, environment=node.environment)
    assert f"\n  {SMALL}.shared: 4 on GPU 0:1\n" in checked.output
    assert f"\n  {LARGE}: 1 on GPU 0:0\n" in checked.output
    assert f"\n  {GPU}: 1 on GPU 1\n" in checked.output


async def test_instances_are_made_also_after_a_kill_between_two_steps(tmp_path: Path) -> None:
    """`gpushare mig` is killed between a GPU instance and its MIG instance; the next one completes it, and goes on.

    The instance that a program uses stays, although it may be destroyed, and so does what is there at the end.
    """
    root = MigRoot(tmp_path / "mig")
    root.path.mkdir()
    card = FakeGpu(mig_enabled=True, mig_profiles="A100-40GB", mig_instances=(FakeMigInstance("3g.20gb"),))
    with FakeNvml([card]) as node:
        uuid, (instance,) = node.gpus[0].uuid, node.gpus[0].mig_instances
        node.use(instance.uuid, FakeProcess(4711))
        node.hang("nvmlGpuInstanceCreateComputeInstance")
        wanted = WantedCard(uuid=uuid, instances=("1g.10gb@6", "2g.10gb@4"), removable=(instance.uuid,))
        write_message(root.wanted, MigOrder(revision=1, gpus=(wanted,)))
        arguments = ("mig", "--mig-root", root.path, "--container-driver-root", tmp_path / "driver-root")
        async with process(*arguments, environment=node.environment) as first:
            calls = node.calls
            await first.until(lambda: calls()["nvmlGpuInstanceCreateComputeInstance"], "it made half an instance")
            assert await first.stop(signal.SIGKILL) == -signal.SIGKILL
        node.go_on()
        async with process(*arguments, environment=node.environment) as second:
            await second.logged("mig_instance_created", times=2)
            reason = (await second.logged("mig_not_done"))["reason"]
            assert reason == "3g.20gb@0 is not destroyed, because programs use it (processes 4711)"
            node.leave(instance.uuid)
            await second.logged("mig_instance_destroyed", gpus=[instance.uuid])
            await second.until(root.ready.exists, "all was done")
            status = read_message(root.status, MigStatus)
            assert status is not None
            assert [each.place for each in status.gpus[0].instances] == ["2g.10gb@4", "1g.10gb@6"]
            second.process.send_signal(signal.SIGHUP)
            assert await second.stop() == 0
        assert node.calls()["nvmlDeviceCreateGpuInstanceWithPlacement"] == 2


async def test_programs_that_meet_in_one_directory_by_a_link_are_refused(
    kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """Each would overwrite files of the other: the second ends with a sentence, and touches nothing."""
    root = MpsRoot(short_path / "run/mps")
    gpus = short_path / "gpus.yaml"
    gpus.write_text("gpus: [{memory: 16GiB}]\n")
    (short_path / "var").symlink_to(short_path / "run")
    same = ("--mig-root", short_path / "var/mps")
    with FakeMps() as mps:
        arguments = ("mps", "--mps-root", root.path, "--simulate", gpus)
        async with process(*arguments, environment=mps.environment) as daemon:
            await daemon.until(root.status.exists, "it was ready")
            before = root.status.read_bytes()
            mig = await gpushare("mig", *same)
            assert root.status.read_bytes() == before
            plugin = (
                "--device-plugin-path",
                kubelet.plugin_directory,
                "--mps-root",
                root.path,
                "--partitioning",
                "true",
            )
            run = await gpushare("run", "--simulate", gpus, *plugin, *same)
            assert await daemon.stop() == 0
    assert (mig.status, run.status) == (1, 1)
    for each in (mig, run):
        assert "two directories beside each other" in each.errors


async def test_a_kill_of_both_programs_between_two_steps_loses_no_instance(
    kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """Daemon and `gpushare mig` die with half an instance made, then with half of it destroyed; others go on from that.

    The instance of a pod stays, nothing is made twice, and what is wanted is there at the end.
    """
    root = MigRoot(short_path / "mig")
    driver = ("--container-driver-root", short_path / "driver-root", "--mig-root", root.path)
    async with ApiServer() as server:
        a_node(server)
        label(server, PARTITIONING, "mig")
        cluster = ("--kubeconfig", server.kubeconfig(short_path / "kubeconfig"), "--partitioning", "true")
        pods = ("--pod-resources-socket", kubelet.pod_resources_socket)
        with FakeNvml([FakeGpu(mig_enabled=True, mig_profiles="A100-40GB")]) as node:
            environment = {**node.environment, "NODE_NAME": NODE}

            def want(*places: str) -> None:
                annotate(server, WANTED_SLICES, encode(Wanted({node.gpus[0].uuid: dict.fromkeys(places, 1)})))

            @contextlib.asynccontextmanager
            async def both(place: str) -> AsyncIterator[tuple[Daemon, Daemon]]:
                """Run the daemon until it has ordered an instance at a place, then the other one, too."""
                async with running(kubelet, *driver, *cluster, *pods, environment=environment) as daemon:
                    await daemon.until(lambda: root.wanted.exists() and place in root.wanted.read_text(), "an order")
                    async with process("mig", *driver, environment=environment) as mig:
                        yield daemon, mig

            async def killed(programs: tuple[Daemon, Daemon], call: str, times: int) -> None:
                """Kill both when a call has been made so often."""
                await programs[1].until(lambda: node.calls()[call] == times, f"{call} was called")
                await asyncio.gather(*(each.stop(signal.SIGKILL) for each in programs))
                node.go_on()

            want("3g.20gb@4")
            async with both("3g.20gb@4") as programs:
                await programs[0].advertises(kubelet, {LARGE: 1})
                held = (await admit(kubelet, LARGE, 1)).environment["NVIDIA_VISIBLE_DEVICES"]
                node.hang("nvmlGpuInstanceCreateComputeInstance")
                want("3g.20gb@4", "4g.20gb@0")
                await killed(programs, "nvmlGpuInstanceCreateComputeInstance", 2)
            want("3g.20gb@4", "2g.10gb@0", "1g.5gb@2")
            node.hang("nvmlGpuInstanceDestroy")
            async with both("2g.10gb@0") as programs:
                await killed(programs, "nvmlGpuInstanceDestroy", 1)
            async with both("2g.10gb@0") as programs:
                await programs[0].advertises(kubelet, {LARGE: 1, "nvidia.com/mig-2g.10gb": 1, SMALL: 1})
                status = read_message(root.status, MigStatus)
                assert status is not None
                there = {each.place: each.uuids for each in status.gpus[0].instances}
            assert list(there) == ["2g.10gb@0", "1g.5gb@2", "3g.20gb@4"]
            assert there["3g.20gb@4"] == (held,)
            calls = node.calls()
            assert calls["nvmlDeviceCreateGpuInstanceWithPlacement"] == 4
            assert calls["nvmlComputeInstanceDestroy"] == 0
