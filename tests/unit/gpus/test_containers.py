"""Tests of `gpushare_plugin.gpus.containers`: which container a process is in."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.usage import HOST, Owner
from gpushare_plugin.gpus import containers
from gpushare_plugin.gpus.containers import HostProcess, look_up, owner, why_unknown

UID = "7b0f9c3a-1b2c-4d5e-8f90-123456789abc"
ESCAPED = UID.replace("-", "_")
STATIC = "b5a1e2d3c4f5061728394a5b6c7d8e9f"
ID = "0123456789abcdef" * 4
OUTER = "fedcba9876543210" * 4
KIND = f"kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{ESCAPED}.slice"
HOST_NAMESPACE = "pid:[4026531836]"

V1 = """12:pids:{path}
11:memory:{path}
1:name=systemd:{path}
0::/
"""


@pytest.mark.parametrize(
    ("path", "uid", "container"),
    [
        (f"/kubepods/burstable/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/besteffort/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/burstable/pod{STATIC}/{ID}", STATIC, ID),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
            UID,
            ID,
        ),
        (f"/kubepods.slice/kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope", UID, ID),
        (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED}.slice/crio-{ID}.scope", UID, ID),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED}.slice/crio-{ID}.scope/container",
            UID,
            ID,
        ),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/docker-{ID}.scope", UID, ID),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{ID}.scope",
            STATIC,
            ID,
        ),
        (f"/system.slice/containerd.service/kubepods-burstable-pod{ESCAPED}.slice:cri-containerd:{ID}", UID, ID),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope/init",
            UID,
            ID,
        ),
        (f"/docker/{OUTER}/kubelet.slice/{KIND}/cri-containerd-{ID}.scope", UID, ID),
        (f"/docker/{OUTER}/kubelet/kubepods/burstable/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/pod{UID}/{ID}/kubelet/kubepods/besteffort/pod{STATIC}/{OUTER}", UID, ID),
        (f"/../../kubepods-besteffort-pod{ESCAPED}.slice/cri-containerd-{ID}.scope", UID, ID),
        (f"/../../pod{UID}/{ID}", UID, ID),
        (f"/../../../kubelet-kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope/pod{STATIC}/{OUTER}", UID, ID),
        (f"/kubepods/burstable/pod{UID}", UID, ""),
        (f"/docker/{ID}", "", ID),
        (f"/system.slice/docker-{ID}.scope", "", ID),
        (f"/machine.slice/libpod-{ID}.scope", "", ID),
        ("/user.slice/user-1000.slice/session-2.scope", "", ""),
        ("/system.slice/kubelet.service", "", ""),
        ("/podman/podcast", "", ""),
        ("/", "", ""),
    ],
)
@pytest.mark.parametrize("form", ["0::{path}\n", V1], ids=["v2", "v1"])
def test_cgroups_name_the_container(form: str, path: str, uid: str, container: str) -> None:
    """Every runtime and driver, on either version of cgroups, says which pod and container a process is in."""
    assert owner(form.format(path=path)) == Owner(uid, container)


def test_a_single_hierarchy_of_cgroups_is_enough() -> None:
    """With version 1 a container may be in some hierarchies only; the order of the lines does not matter."""
    lines = ["9:name=systemd:/", f"8:pids:/kubepods/pod{UID}/{ID}", f"4:memory:/docker/{OUTER}", "0::/"]
    assert owner("\n".join(lines)) == owner("\n".join(reversed(lines))) == Owner(UID, ID)


@given(st.text())
def test_any_text_has_an_owner(text: str) -> None:
    """Whatever a name of a cgroup has in it, reading it raises nothing."""
    assert isinstance(owner(text), Owner)


# ---------------------------------------------------------------------- processes


def process(  # noqa: PLR0913 - what the kernel says of a process
    procfs: Path, pid: int, began: float, *, cgroup: str = "0::/", name: str = "python", state: str = "S"
) -> None:
    """Write what the kernel knows of a process into a file tree."""
    folder = procfs / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    ticks = int(began * os.sysconf("SC_CLK_TCK"))
    (folder / "stat").write_text(f"{pid} ({name}) {state} " + " ".join(["1"] * 18) + f" {ticks} 2 3\n")
    (folder / "cgroup").write_text(cgroup + "\n")


def test_a_process_has_the_name_of_its_program_and_an_owner(tmp_path: Path) -> None:
    """A process has the name of its program, whatever that is, and the owner that its cgroup names."""
    process(tmp_path, 1, 10, cgroup=f"0::/kubepods/pod{UID}/{ID}")
    process(tmp_path, 2, 10, name="a) S 1 (b")
    process(tmp_path, 3, 10, name="\x1b[31m red")
    assert look_up([1, 2, 3], 20, tmp_path) == {
        1: HostProcess("python", Owner(UID, ID), 10),
        2: HostProcess("a) S 1 (b", HOST, 10),
        3: HostProcess("?[31m red", HOST, 10),
    }


def test_a_process_that_ended_is_left_out(tmp_path: Path) -> None:
    """Processes that are gone, or only wait for their parent, are nobody's."""
    process(tmp_path, 2, 10, state="Z")
    process(tmp_path, 3, 10)
    (tmp_path / "3/cgroup").unlink()
    assert look_up([1, 2, 3], 20, tmp_path) == {}


def test_a_process_that_began_after_the_question_is_left_out(tmp_path: Path) -> None:
    """A process that began after the driver was asked has the ID of one that ended: it did not use the GPU."""
    process(tmp_path, 1, 20.5, cgroup=f"0::/kubepods/pod{UID}/{ID}")
    process(tmp_path, 2, 19.5)
    assert look_up([1, 2], 20, tmp_path).keys() == {2}


def test_an_id_that_changes_hands_meanwhile_is_nobodys(tmp_path: Path) -> None:
    """Where another process has the ID by the time its cgroup was read, nothing is said of either."""
    process(tmp_path, 1, 10)
    cgroup, stat = tmp_path / "1/cgroup", tmp_path / "1/stat"
    cgroup.unlink()
    os.mkfifo(cgroup)

    def another_begins() -> None:
        with cgroup.open("w") as stream:  # opens once the cgroup is read, after the first look at the process
            process_text = stat.read_text().replace(f" {10 * os.sysconf('SC_CLK_TCK')} ", " 1 ")
            stat.write_text(process_text)
            stream.write("0::/\n")

    with ThreadPoolExecutor(1) as beside:
        changed = beside.submit(another_begins)
        assert look_up([1], 20, tmp_path) == {}
        changed.result(30)


def test_a_real_process_is_found_and_gone_once_it_ended() -> None:
    """The kernel of this machine is read as the file trees of these tests are."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = look_up([child.pid], containers.now(), Path("/proc"))
    child.communicate(b"\n")
    assert found[child.pid].program.startswith("python")
    assert look_up([child.pid], containers.now(), Path("/proc")) == {}


# ---------------------------------------------------------------------- the namespace


def namespace(procfs: Path, text: str) -> Path:
    """Let this process be in a PID namespace."""
    (procfs / "self/ns").mkdir(parents=True)
    (procfs / "self/ns/pid").symlink_to(text)
    return procfs


def test_process_ids_mean_the_same_in_the_hosts_namespace(tmp_path: Path) -> None:
    """The kernel's first PID namespace has the same number on every machine."""
    assert why_unknown(namespace(tmp_path, HOST_NAMESPACE)) is None


def test_process_ids_mean_others_in_another_namespace(tmp_path: Path) -> None:
    """Without the host's namespace nothing is said of processes, and the remedy is named."""
    assert "hostPID" in str(why_unknown(namespace(tmp_path, "pid:[4026532481]")))


def test_an_unreadable_namespace_leaves_processes_unknown(tmp_path: Path) -> None:
    """Facts that cannot be found out are not guessed."""
    assert "No such file" in str(why_unknown(tmp_path))
