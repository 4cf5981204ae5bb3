"""Tests of CDI devices on a node: what the kubelet is answered on hosts with other specifications."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from gpushare_plugin.base.structs import replace
from gpushare_plugin.gpus.cdi import toolkit
from gpushare_plugin.node.gpus import looks
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.hosts import UUIDS, Host, two_gpus
from tests.node.living import Life, living
from tests.nodes import Cards
from tests.unit.sharing.settings import GPU_MEM, memory
from tests.waiting import until

TWO = two_gpus(8192)
CDI = {"plugin": {"deviceListStrategy": "cdi-cri"}}
Log = list[MutableMapping[str, Any]]


async def devices(kubelet: EmbeddedKubelet, name: str = "pod") -> tuple[str, ...]:
    """Return the CDI devices of a new container that gets all memory of a GPU."""
    admitted = await kubelet.admit(Pod(name, [Container("main", {GPU_MEM: 8})]))
    return admitted.containers["main"].cdi_devices


def names(life: Life) -> list[str]:
    """Return the CDI devices that the daemon names, GPU by GPU."""
    return list(life.node.snapshot.value.cdi_names.values())


def test_a_generator_that_hangs_is_given_up_before_the_driver_counts_as_unresponsive() -> None:
    """One look reads the GPUs and runs the generator: else, the generator would make all GPUs unhealthy."""
    assert toolkit.TIMEOUT < looks.DRIVER_TIMEOUT


async def test_a_container_gets_the_device_that_nvidias_toolkit_has_described(
    kubelet: EmbeddedKubelet, tmp_path: Path, log: Log
) -> None:
    """Where NVIDIA's specification has the GPUs, the answer names its devices, and no warning is logged."""
    host = Host("kubeadm", tmp_path)
    async with living(kubelet, Cards(TWO), cdi_spec_dirs=host.spec_dirs, flags=CDI, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        assert await devices(kubelet) == (f"nvidia.com/gpu={UUIDS[0]}",)
        assert life.node.snapshot.value.notices == ()
    expected = [f"nvidia.com/gpu={uuid}" for uuid in UUIDS]
    assert [each["names"] for each in log if each["event"] == "cdi_devices"] == [expected]


async def test_a_container_gets_our_own_device_where_nvidias_operator_describes_none(
    kubelet: EmbeddedKubelet, tmp_path: Path, log: Log
) -> None:
    """The specification is there before the first answer, and no warning is logged; it goes with the daemon."""
    host = Host("operator", tmp_path)
    async with living(kubelet, Cards(TWO), cdi_spec_dirs=host.spec_dirs, flags=host.flags, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        assert await devices(kubelet) == (f"gpushare/gpu={UUIDS[0]}",)
        assert host.own.exists()
        assert life.node.snapshot.value.notices == ()
    assert not host.own.exists()
    events = [each["event"] for each in log if each["event"].startswith("cdi_")]
    assert events == ["cdi_spec_written", "cdi_devices", "cdi_spec_removed"]


async def test_a_gpu_that_is_added_is_described_before_it_is_offered(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """When the kubelet knows the units of a new GPU, the specification has the GPU."""
    host = Host("bare", tmp_path)
    cards = Cards(replace(TWO, cards=TWO.cards[:1]))
    async with living(kubelet, cards, cdi_spec_dirs=host.spec_dirs, flags=host.flags, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        cards.inventory = TWO
        await life.healthy({GPU_MEM: 16})
        assert UUIDS[1] in host.own.read_text()
        assert await devices(kubelet, "first") == (f"gpushare/gpu={UUIDS[0]}",)
        assert await devices(kubelet, "second") == (f"gpushare/gpu={UUIDS[1]}",)


async def test_a_daemon_that_cannot_write_says_so_and_goes_on(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """The GPUs are offered, and the node warns what pods will get; when the directory is there, the warning ends."""
    host = Host("bare", tmp_path, without=["/run/cdi"])
    dirs = host.spec_dirs
    async with living(kubelet, Cards(TWO), cdi_spec_dirs=dirs, flags=host.flags, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        (told,) = life.node.snapshot.value.notices
        assert told.startswith(f"no CDI specification in {dirs[0]} or {dirs[1]} has nvidia.com/gpu={UUIDS[0]}, ")
        assert f"gpushare has no specification of its own: {dirs[1]} does not exist here" in told
        dirs[1].mkdir()
        await until(lambda: life.node.snapshot.value.notices == ())
        assert names(life) == [f"gpushare/gpu={gpu.uuid}" for gpu in TWO.cards]


async def test_nvidias_specification_is_used_as_soon_as_it_appears(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """New containers get NVIDIA's device; ours stays, for containers that have it and start again."""
    host = Host("kubeadm", tmp_path)
    file = host.spec_dirs[1] / "nvidia.yaml"
    file.rename(away := file.with_suffix(".away"))
    async with living(kubelet, Cards(TWO), cdi_spec_dirs=host.spec_dirs, flags=host.flags, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        assert await devices(kubelet, "first") == (f"gpushare/gpu={UUIDS[0]}",)
        away.rename(file)
        await until(lambda: names(life) == [f"nvidia.com/gpu={gpu.uuid}" for gpu in TWO.cards])
        assert await devices(kubelet, "second") == (f"nvidia.com/gpu={UUIDS[1]}",)
        assert host.own.exists()


async def test_a_config_that_begins_to_use_cdi_has_the_names_from_its_first_answer_on(
    kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    """The specifications are looked at before another config is in effect."""
    host = Host("kubeadm", tmp_path)
    flags = {"plugin": {"deviceListStrategy": "cdi-cri", "cdiKind": "example.com/gpu"}}
    slow = {"rescanSeconds": 3600}
    async with living(kubelet, Cards(TWO), cdi_spec_dirs=host.spec_dirs, health=slow, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        assert names(life) == []
        # Only a look at the file tells that the devices are those of NVIDIA's plugin.
        file = host.spec_dirs[1] / "nvidia.yaml"
        file.write_text(file.read_text().replace('"nvidia.com/gpu"', '"k8s.device-plugin.nvidia.com/gpu"'))
        await life.reload(health=slow, flags=flags, sharing=memory())
        assert await devices(kubelet) == (f"k8s.device-plugin.nvidia.com/gpu={UUIDS[0]}",)
