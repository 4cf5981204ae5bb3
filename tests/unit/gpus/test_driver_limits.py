"""Tests of `gpushare_plugin.gpus.driver_limits`, on hosts described as folders and trees of cgroups."""

from pathlib import Path

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.host import Host as HostOfDaemon
from gpushare_plugin.testing.cgroups import CgroupTree
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS
from tests.hosts import UUIDS, Host, two_gpus
from tests.unit.sharing.settings import memory, settings

GPUS = replace(two_gpus(), driver_version=DRIVER_WITH_LIMITS)


def config_of(host: Host, isolation: object = "driver", strategy: str = "cdi-cri") -> Config:
    """Return a config that names an isolation."""
    plugin = {"deviceListStrategy": strategy, "containerDriverRoot": str(host.driver_here)}
    return settings(flags={**host.flags, "plugin": plugin}, sharing=memory(isolation=isolation))


def found(
    host: Host,
    config: Config | None = None,
    inventory: Inventory = GPUS,
    cgroups: Path | None = None,
    *,
    agent: bool = False,
) -> DriverLimits | None:
    """Return the means that a look finds."""
    looking = HostOfDaemon(
        host.spec_dirs, cgroup_root=cgroups or host.root / "sys/fs/cgroup", limits_agent=agent, here=host.root
    )
    config = config or config_of(host)
    previewed = looking.preview(inventory, config)
    looking.look(inventory, config)
    looking.close()
    seen, foreseen = looking.facts.driver_limits, previewed.driver_limits
    assert (seen and seen.missing) == (foreseen and foreseen.missing)
    return seen


def test_a_host_with_the_hook_on_every_gpu_has_driver_limits(tmp_path: Path) -> None:
    """Driver, cgroups and the specification of NVIDIA's toolkit are there."""
    assert found(Host("driver-limits", tmp_path)) == DriverLimits()


@pytest.mark.parametrize("isolation", ["none", "mps", ["mps", "none"]])
def test_nothing_is_looked_at_for_a_config_without_driver_limits(tmp_path: Path, isolation: object) -> None:
    """A node whose config does not name the driver's limits is as before."""
    host = Host("driver-limits", tmp_path)
    assert found(host, config_of(host, isolation)) is None


def test_an_older_toolkit_sets_no_limits(tmp_path: Path) -> None:
    """The devices of the GPUs are named, and what brings the hook; an agent makes up for it."""
    host = Host("driver-limits-old-toolkit", tmp_path)
    limits = found(host)
    assert limits is not None
    assert limits.missing == ""
    assert limits.hook.startswith(
        f"no hook apply-cuda-memory-limits is in the CDI specification of nvidia.com/gpu={UUIDS[0]}, nvidia.com/gpu="
    )
    assert "toolkit from 1.20.1 on" in limits.hook
    assert found(host, agent=True) == replace(limits, agent=True)


def test_a_hook_counts_only_where_containers_get_cdi_devices(tmp_path: Path) -> None:
    """By a variable, the runtime decides what a container gets, which the daemon does not see."""
    host = Host("driver-limits", tmp_path)
    limits = found(host, config_of(host, strategy="envvar"))
    assert limits is not None
    assert "deviceListStrategy: cdi-cri" in limits.hook


def test_gpus_in_mig_mode_need_no_hook(tmp_path: Path) -> None:
    """NVIDIA's toolkit adds the hook to devices of whole GPUs only."""
    host = Host("driver-limits-old-toolkit", tmp_path)
    divided = replace(GPUS, cards=tuple(replace(card, mig_enabled=True) for card in GPUS.cards))
    assert found(host, inventory=divided) == DriverLimits()


@pytest.mark.parametrize(("version", "told"), [("580.95.05", "580.95.05"), ("", "of unknown version")])
def test_a_driver_before_615_limits_nothing(tmp_path: Path, version: str, told: str) -> None:
    """With the variables of the hook, a container could not even be created there."""
    limits = found(Host("driver-limits", tmp_path), inventory=replace(GPUS, driver_version=version))
    assert limits is not None
    assert limits.missing == f"NVIDIA's driver {told} limits no memory, which drivers from 615 on do"


def test_cgroups_of_version_1_are_not_enough(tmp_path: Path) -> None:
    """The message says where was looked, and how to get version 2."""
    (tmp_path / "v1/memory").mkdir(parents=True)
    limits = found(Host("driver-limits", tmp_path), cgroups=tmp_path / "v1")
    assert limits is not None
    assert f"{tmp_path / 'v1'} is no tree of cgroups of version 2" in limits.missing


def test_a_tree_of_cgroups_that_is_not_there_is_told(tmp_path: Path) -> None:
    """The message says where was looked, and that a mount is missing rather than a version of cgroups."""
    limits = found(Host("driver-limits", tmp_path), cgroups=tmp_path / "nothing")
    assert limits is not None
    assert limits.missing == (
        f"there is no {tmp_path / 'nothing'}, where the host's tree of cgroups of version 2 is expected; mount the "
        "tree there (chart: driverLimits.enabled, or driverLimits.readCgroups), or name with --cgroup-root where it "
        "is mounted"
    )


@pytest.mark.parametrize(
    ("controllers", "missing"), [(["dmem"], False), (["misc", "cpu"], False), (["cpu", "memory"], True)]
)
def test_the_kernel_needs_a_controller_that_counts_memory_of_gpus(
    tmp_path: Path,
    controllers: list[str],
    missing: bool,  # noqa: FBT001 - a case
) -> None:
    """The root of the tree has all controllers of the kernel; another cgroup does not tell what the kernel has."""
    tree = CgroupTree(tmp_path / "cgroup", controllers)
    host = Host("driver-limits", tmp_path)
    limits, below = found(host, cgroups=tree.root), found(host, cgroups=tree.make("kubepods.slice"))
    assert limits is not None
    assert ("neither of the cgroup controllers dmem and misc" in limits.missing) is missing
    assert below == DriverLimits()


def accounting(host: Host, mode: str) -> None:
    """Have the driver of a host run with a mode of accounting, the default one if empty."""
    words = f"Other=1;RmMemacctMode={mode}" if mode else "Other=0"
    (host.root / "proc/driver/nvidia/params").write_text(f'Version: 1\nRegistryDwords: "{words}"\n')


@pytest.mark.parametrize(
    ("kernel", "of_pods", "mode", "missing"),
    [
        (["cpu", "dmem"], ["cpu"], "", "the kubepods cgroup has the controllers cpu, and not dmem"),
        (["cpu", "dmem"], ["cpu", "dmem"], "", ""),
        (["cpu", "dmem"], ["cpu", "dmem"], "1", "RmMemacctMode=1 in NVreg_RegistryDwords has the driver count memory"),
        (["cpu", "misc"], ["cpu", "misc"], "1", ""),
        (["dmem", "misc"], ["dmem"], "1", "the kubepods cgroup has the controllers dmem, and not misc"),
    ],
)
def test_the_driver_has_to_count_the_containers_of_pods(
    tmp_path: Path, *, kernel: list[str], of_pods: list[str], mode: str, missing: str
) -> None:
    """Where the driver counts above containers, or by no controller at all, it limits none of them."""
    tree = CgroupTree(tmp_path / "cgroup", kernel)
    (tree.make("kubepods.slice") / "cgroup.controllers").write_text(" ".join(of_pods))
    host = Host("driver-limits", tmp_path)
    accounting(host, mode)
    limits = found(host, cgroups=tree.root)
    assert limits is not None
    assert limits.missing[: len(missing) or None] == missing


@pytest.mark.parametrize(("mode", "off"), [("0", True), ("0x0", True), ("3", False), ("", False)])
def test_an_accounting_that_is_turned_off_limits_nothing(
    tmp_path: Path,
    mode: str,
    off: bool,  # noqa: FBT001 - a case
) -> None:
    """The functions of the library are there, and the hook would keep containers from being created."""
    host = Host("driver-limits", tmp_path)
    accounting(host, mode)
    limits = found(host)
    assert limits is not None
    assert limits.missing.startswith("RmMemacctMode=0 in NVreg_RegistryDwords") is off


def test_simulated_gpus_have_what_their_file_says(tmp_path: Path) -> None:
    """No host is looked at; the option of the daemon counts as well."""
    host, described = Host("bare", tmp_path), DriverLimits(hook="none in the file")
    inventory = replace(GPUS, driver_version="570.1", driver_limits=described)
    assert found(host, inventory=inventory) == described
    assert found(host, inventory=inventory, agent=True) == replace(described, agent=True)
