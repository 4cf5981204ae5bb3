"""Tests of `gpushare_plugin.testing.cgroups`."""

import errno
from pathlib import Path

import pytest

from gpushare_plugin.gpus.cgroups import Kubepods
from gpushare_plugin.testing.cgroups import (
    CgroupTree,
    Driver,
    PodCgroups,
    Prefix,
    Qos,
    controllers_of,
    lineage,
    real_cgroups,
)

UID = "7b0f9c3a-1b2c-4d5e-8f90-123456789abc"
ID = "0123456789abcdef" * 4
REGION = "nvidia/0000:07:00.0/vidmem"


@pytest.mark.parametrize("above", ["", "kubelet"])
@pytest.mark.parametrize(
    ("driver", "prefix", "inner"),
    [
        ("systemd", "cri-containerd", ""),
        ("systemd", "crio", "container"),
        ("systemd", "docker", ""),
        ("cgroupfs", "cri-containerd", ""),
    ],
)
def test_the_cgroup_of_a_container_is_where_gpushare_looks_for_it(
    tmp_path: Path, above: str, driver: Driver, prefix: Prefix, inner: str
) -> None:
    """Under the names of each driver and runtime, in each QoS class, below any `--cgroup-root`."""
    pods = PodCgroups(CgroupTree(tmp_path), driver, above, prefix, inner)
    classes: tuple[Qos, ...] = ("guaranteed", "burstable", "besteffort")
    for qos in classes:
        made = pods.container(UID, ID, qos)
        assert made.is_dir()
        assert Kubepods.below(tmp_path).container(UID, ID) == made
        pods.remove_container(UID, ID, qos)
        assert Kubepods.below(tmp_path).container(UID, ID) is None


def test_names_are_those_of_a_kubelet_with_containerd(tmp_path: Path) -> None:
    """Slices nest by their names; the runtime is told slice, prefix and name, or the path with the other driver."""
    tree = CgroupTree(tmp_path)
    pod = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
    slices = PodCgroups(tree)
    assert str(slices.path(UID, ID)) == f"kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{ID}.scope"
    assert slices.runtime_path(UID, ID) == f"{pod}:cri-containerd:{ID}"
    paths = PodCgroups(tree, "cgroupfs")
    assert str(paths.path(UID, ID, "guaranteed")) == f"kubepods/pod{UID}/{ID}"
    assert paths.runtime_path(UID, ID, "guaranteed") == f"/kubepods/pod{UID}/{ID}"


def test_each_cgroup_has_the_files_of_its_controllers(tmp_path: Path) -> None:
    """The root has capacities and no limits; a controller that is not enabled leaves no file in what is below."""
    tree = CgroupTree(tmp_path, ("cpu", "misc", "dmem"), {REGION: 1 << 30})
    assert (tree.root / "dmem.capacity").read_text() == f"{REGION} {1 << 30}\n"
    assert not (tree.root / "dmem.max").exists()
    full, bare = tree.make("a/b"), tree.make("c/d", without=["dmem"])
    assert (full / "dmem.max").read_text() == f"{REGION} max\n"
    assert (full / "dmem.min").read_text() == (full / "dmem.current").read_text() == f"{REGION} 0\n"
    assert {file.name for file in bare.parent.glob("*.max")} == {"misc.max"}
    assert controllers_of(bare) == controllers_of(bare.parent) == ["cpu", "misc"]
    assert list(lineage(full)) == [full, full.parent, tree.root]


def test_a_cgroup_with_processes_or_children_stays(tmp_path: Path) -> None:
    """As the kernel does, with the same error."""
    tree = CgroupTree(tmp_path)
    child = tree.make("a/b")
    tree.enter(child, 7)
    for cgroup in (child, child.parent):
        assert (cgroup / "cgroup.events").read_text() == "populated 1\nfrozen 0\n"
        with pytest.raises(OSError, match="busy") as caught:
            tree.remove(cgroup)
        assert caught.value.errno == errno.EBUSY
    tree.leave(child, 7)
    assert (child.parent / "cgroup.events").read_text() == "populated 0\nfrozen 0\n"
    tree.remove(child)
    tree.remove(child.parent)
    assert list(lineage(child)) == []


def test_a_kernel_can_reuse_the_address_of_a_removed_cgroup(tmp_path: Path) -> None:
    """The last one first, and only if told to."""
    for reuses in (False, True):
        tree = CgroupTree(tmp_path / str(reuses), reuses_addresses=reuses)
        old = (tree.make("old") / ".address").read_text()
        tree.remove(tree.root / "old")
        assert ((tree.make("new") / ".address").read_text() == old) == reuses


def test_cgroups_of_the_machine_are_gone_at_the_end() -> None:
    """Whatever was made below; without a tree that can be written there are none."""
    with real_cgroups() as cgroups:
        if cgroups is None:
            pytest.skip("no cgroups of version 2 that can be written")
        made = PodCgroups(cgroups).container(UID, ID)
        assert (made / "cgroup.procs").exists()
        assert Kubepods.below(cgroups.root).container(UID, ID) == made
        with pytest.raises(ValueError, match="misc"):
            cgroups.make("a", without=["misc"])
    assert not cgroups.root.exists()
