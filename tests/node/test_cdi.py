"""Tests of CDI devices on a node: what the kubelet is answered on hosts with other specifications."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from gpushare_plugin.base.structs import replace
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.hosts import DRIVER, Host
from tests.node.living import Life, living
from tests.nodes import Cards, a_gpu, a_node
from tests.unit.sharing.settings import GPU_MEM, memory
from tests.waiting import until

TWO = replace(a_node(8192, 8192), driver_version=DRIVER)
CDI = {"plugin": {"deviceListStrategy": "cdi-cri"}}
Log = list[MutableMapping[str, Any]]


async def devices(kubelet: EmbeddedKubelet, name: str = "pod") -> tuple[str, ...]:
    """Return the CDI devices of a new container that gets all memory of a GPU."""
    admitted = await kubelet.admit(Pod(name, [Container("main", {GPU_MEM: 8})]))
    return admitted.containers["main"].cdi_devices


def names(life: Life) -> list[str]:
    """Return the CDI devices that the daemon names, GPU by GPU."""
    return list(life.node.snapshot.value.cdi_names.values())


async def test_a_container_gets_the_device_that_nvidias_toolkit_has_described(
    kubelet: EmbeddedKubelet, tmp_path: Path, log: Log
) -> None:
    """Where NVIDIA's specification has the GPUs, the answer names its devices, and no warning is logged."""
    host = Host("kubeadm", tmp_path)
    async with living(kubelet, Cards(TWO), cdi_spec_dirs=host.spec_dirs, flags=CDI, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        assert await devices(kubelet) == (f"nvidia.com/gpu={a_gpu(0).uuid}",)
        assert life.node.snapshot.value.notices == ()
    expected = [f"nvidia.com/gpu={a_gpu(index).uuid}" for index in (0, 1)]
    assert [each["names"] for each in log if each["event"] == "cdi_devices"] == [expected]


async def test_a_specification_that_changes_is_noticed_while_the_daemon_runs(
    kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    """A device that is missing is warned of; when its specification appears, the warning ends without a restart."""
    host = Host("kubeadm", tmp_path)
    file = host.spec_dirs[1] / "nvidia.yaml"
    file.rename(away := file.with_suffix(".away"))
    dirs = host.spec_dirs
    async with living(kubelet, Cards(TWO), cdi_spec_dirs=dirs, flags=CDI, sharing=memory()) as life:
        await life.healthy({GPU_MEM: 16})
        (told,) = life.node.snapshot.value.notices
        assert told.startswith(f"no CDI specification in {dirs[0]} or {dirs[1]} has nvidia.com/gpu={a_gpu(0).uuid}, ")
        away.rename(file)
        await until(lambda: life.node.snapshot.value.notices == ())


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
        file.write_text(file.read_text().replace("kind: nvidia.com", "kind: k8s.device-plugin.nvidia.com"))
        await life.reload(health=slow, flags=flags, sharing=memory())
        assert await devices(kubelet) == (f"k8s.device-plugin.nvidia.com/gpu={a_gpu(0).uuid}",)
