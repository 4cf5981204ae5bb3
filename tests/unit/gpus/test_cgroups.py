"""Tests of `gpushare_plugin.gpus.cgroups`: the cgroup of a container in the host's tree."""

from pathlib import Path

import pytest

from gpushare_plugin.gpus.cgroups import Kubepods, counted_above, pod_runs
from gpushare_plugin.gpus.containers import owner
from gpushare_plugin.testing.cgroups import CgroupTree

UID = "7b0f9c3a-1b2c-4d5e-8f90-123456789abc"
OTHER_UID = "00000000-1b2c-4d5e-8f90-123456789abc"
STATIC = "b5a1e2d3c4f5061728394a5b6c7d8e9f"
ID = "0123456789abcdef" * 4
OTHER_ID = "fedcba9876543210" * 4


def pod_slice(uid: str, qos: str = "burstable-", below: str = "") -> str:
    """Return the path of a pod's cgroup with the systemd driver."""
    top = f"{below}kubepods"
    path = f"{below.removesuffix('-')}.slice/{top}.slice/" if below else f"{top}.slice/"
    inner = f"{top}-{qos.removesuffix('-')}.slice/" if qos else ""
    return f"{path}{inner}{top}-{qos}pod{uid.replace('-', '_')}.slice"


def make(root: Path, path: str, processes: str = "1\n") -> Path:
    """Make a cgroup as a directory with the file of its processes."""
    made = root / path
    made.mkdir(parents=True)
    (made / "cgroup.procs").write_text(processes)
    return made


@pytest.mark.parametrize(
    ("path", "uid"),
    [
        (f"{pod_slice(UID)}/cri-containerd-{ID}.scope", UID),
        (f"{pod_slice(UID, 'besteffort-')}/crio-{ID}.scope", UID),
        (f"{pod_slice(UID, '')}/docker-{ID}.scope", UID),
        (f"{pod_slice(STATIC)}/cri-containerd-{ID}.scope", STATIC),
        (f"{pod_slice(UID, below='kubelet-')}/cri-containerd-{ID}.scope", UID),
        (f"kubepods/burstable/pod{UID}/{ID}", UID),
        (f"kubepods/besteffort/pod{UID}/{ID}", UID),
        (f"kubepods/pod{UID}/{ID}", UID),
        (f"kubepods/burstable/pod{STATIC}/{ID}", STATIC),
        (f"kubelet/kubepods/pod{UID}/{ID}", UID),
    ],
)
def test_each_driver_and_runtime_names_the_cgroup(tmp_path: Path, path: str, uid: str) -> None:
    """The cgroup is found with either cgroup driver, each QoS class and runtime, and below a `--cgroup-root`.

    A process of the found cgroup is counted as a process of the same container.
    """
    made = make(tmp_path, path)
    assert Kubepods.below(tmp_path).container(uid, ID) == made
    found = owner(f"0::/{made.relative_to(tmp_path)}")
    assert (found.pod_uid, found.container_id) == (uid, ID)
    (made.parent / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert pod_runs(tmp_path, uid)


@pytest.mark.parametrize(
    "path",
    [
        f"{pod_slice(UID)}/crio-conmon-{ID}.scope",
        f"{pod_slice(UID)}/{ID}.slice",
        f"{pod_slice(UID)}/cri-containerd-{ID}.scope.d",
        f"{pod_slice(OTHER_UID)}/cri-containerd-{ID}.scope",
        f"{pod_slice(UID)}/cri-containerd-{OTHER_ID}.scope",
        f"system.slice/cri-containerd-{ID}.scope",
        f"{pod_slice(OTHER_UID)}/cri-containerd-{OTHER_ID}.scope/{pod_slice(UID)}/cri-containerd-{ID}.scope",
        f"{pod_slice(UID)}/cri-containerd-{OTHER_ID}.scope/cri-containerd-{ID}.scope",
        f"kubepods/pod{OTHER_UID}/{OTHER_ID}/kubepods/pod{UID}/{ID}",
    ],
)
def test_cgroups_of_others_are_not_found(tmp_path: Path, path: str) -> None:
    """No other cgroup counts: not CRI-O's monitor, and nothing that another container made below its own cgroup."""
    make(tmp_path, path)
    assert Kubepods.below(tmp_path).container(UID, ID) is None


@pytest.mark.parametrize(
    ("uid", "container_id"),
    [
        (UID, ""),
        (UID, "."),
        (UID, ".."),
        (UID, f"../{ID}"),
        (UID, f"{ID}\n"),
        (UID, ID[:12]),
        (UID, "burstable"),
        ("", ID),
        (f"{UID}/..", ID),
        ("../" + UID, ID),
        (UID.upper(), ID),
    ],
)
def test_ids_of_another_form_find_nothing(tmp_path: Path, uid: str, container_id: str) -> None:
    """An ID that neither the kubelet nor the runtime gives leads nowhere, least of all out of the tree."""
    make(tmp_path, f"kubepods/pod{UID}/{ID}")
    make(tmp_path, f"kubepods/burstable/pod{UID}/{ID[:12]}")
    assert Kubepods.below(tmp_path).container(uid, container_id) is None


@pytest.mark.parametrize(
    "link", ["kubepods", "kubepods/burstable", f"kubepods/burstable/pod{UID}", f"kubepods/burstable/pod{UID}/{ID}"]
)
def test_no_link_is_followed(tmp_path: Path, link: str) -> None:
    """A symbolic link anywhere below the root leads to no cgroup."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    make(elsewhere, f"kubepods/burstable/pod{UID}/{ID}")
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(elsewhere / link)
    assert Kubepods.below(root).container(UID, ID) is None


def test_a_missing_tree_has_no_cgroups(tmp_path: Path) -> None:
    """Without a tree of cgroups, or with a file in the place of a directory, nothing is found and nothing raised."""
    assert Kubepods.below(tmp_path / "missing").container(UID, ID) is None
    (tmp_path / "kubepods").write_text("")
    assert Kubepods.below(tmp_path).container(UID, ID) is None


def test_the_inner_cgroup_of_crun_counts_while_the_scope_is_empty(tmp_path: Path) -> None:
    """Where crun keeps the container in `container`, this is the cgroup, as NVIDIA's hook sees it.

    A container that creates the name itself, and keeps a process outside, is found at the scope.
    """
    scope = make(tmp_path, f"{pod_slice(UID)}/crio-{ID}.scope", processes="")
    inner = make(scope, "container")
    assert Kubepods.below(tmp_path).container(UID, ID) == inner
    (scope / "cgroup.procs").write_text("12\n")
    assert Kubepods.below(tmp_path).container(UID, ID) == scope
    (scope / "cgroup.procs").unlink()
    assert Kubepods.below(tmp_path).container(UID, ID) == scope, "whether the scope has processes is not known"


def test_the_tree_of_the_settings_in_use_is_found_beside_an_older_one(tmp_path: Path) -> None:
    """After a change of the cgroup driver both trees exist; a container is found in its own."""
    (tmp_path / "kubepods/burstable").mkdir(parents=True)
    made = make(tmp_path, f"{pod_slice(UID)}/cri-containerd-{ID}.scope")
    kubepods = Kubepods.below(tmp_path)
    assert kubepods.container(UID, ID) == made
    assert kubepods.container(UID, OTHER_ID) is None
    assert len(kubepods.tops) == 2


def test_a_pod_runs_while_its_cgroup_has_processes(tmp_path: Path) -> None:
    """A pod without a cgroup does not run, nor does a pod whose cgroup is there without processes."""
    pod = make(tmp_path, f"{pod_slice(UID)}/cri-containerd-{ID}.scope").parent
    events = pod / "cgroup.events"
    assert not pod_runs(tmp_path, UID)
    events.write_text("populated 1\nfrozen 0\n")
    assert pod_runs(tmp_path, UID)
    assert not pod_runs(tmp_path, OTHER_UID)
    assert not pod_runs(tmp_path, "../..")
    events.write_text("populated 0\nfrozen 0\n")
    assert not pod_runs(tmp_path, UID)


def test_processes_are_counted_where_a_controller_is_enabled(tmp_path: Path) -> None:
    """Each controller that the driver knows is enough; without any known to the root, nothing is said."""
    tree = CgroupTree(tmp_path / "tree", ("cpu", "misc", "dmem"))
    assert counted_above(tree.make("pod/container")) is None
    assert counted_above(tree.make("pod/with-misc", without=["dmem"])) is None
    bare = tree.make("bare/pod/container", without=["misc", "dmem"])
    assert counted_above(bare) == tree.root
    assert counted_above(CgroupTree(tmp_path / "other", ("cpu",)).make("pod/container")) is None
    assert counted_above(tmp_path / "none") is None
