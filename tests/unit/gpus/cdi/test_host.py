"""Tests of `gpushare_plugin.gpus.cdi`: the specification that gpushare writes, on hosts described as folders."""

import json
import os
import shutil
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.cdi import OWN_KIND
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.testing.hosts import DRIVER
from tests.hosts import UUIDS, Host, two_gpus
from tests.nodes import a_mig_node
from tests.unit.gpus.cdi.schema import Document, assert_valid

TWO = two_gpus()
LIBRARIES = [f"lib{name}.so.{DRIVER}" for name in ("cuda", "nvidia-ml", "nvidia-ptxjitcompiler")]
FOLDER = "/usr/lib/x86_64-linux-gnu"
WRITES = """\
#!/bin/sh
for option; do case "$option" in --output=*) echo 'TEXT' > "${option#--output=}";; esac; done
"""
"""A program that writes a text where it is asked to write a specification."""
Log = list[MutableMapping[str, Any]]


def looked_at(host: Host, inventory: Inventory = TWO) -> Document:
    """Return gpushare's own specification after a look at a host."""
    host.cdi().look(inventory, host.settings())
    return written(host)


def written(host: Host) -> Document:
    """Return gpushare's own specification, which a container runtime would take."""
    spec: Document = json.loads(host.own.read_text())
    assert spec["kind"] == OWN_KIND
    assert_valid(spec)
    return spec


def mounts(spec: Document) -> dict[str, str]:
    """Return what is mounted from where."""
    return {each["containerPath"]: each["hostPath"] for each in spec["containerEdits"]["mounts"]}


def nodes(spec: Document) -> dict[str, list[Document]]:
    """Return the device nodes by device."""
    return {each["name"]: each["containerEdits"]["deviceNodes"] for each in spec["devices"]}


class TestTheSmallest:
    """A specification without NVIDIA's generator."""

    def test_a_host_without_a_toolkit(self, tmp_path: Path) -> None:
        """Device nodes, libraries under each of their names, nvidia-smi, and no hook, because no program makes any."""
        spec = looked_at(Host("bare", tmp_path))
        edits = spec["containerEdits"]
        assert spec["cdiVersion"] == "0.3.0"
        assert nodes(spec) == {uuid: [{"path": f"/dev/nvidia{minor}"}] for minor, uuid in enumerate(UUIDS)}
        assert edits["deviceNodes"] == [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}]
        assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
        assert "hooks" not in edits
        links = {f"{name.partition('.')[0]}.so.1": name for name in LIBRARIES} | {"libcuda.so": LIBRARIES[0]}
        assert mounts(spec) == {
            **{f"{FOLDER}/{name}": f"{FOLDER}/{name}" for name in LIBRARIES},
            **{f"{FOLDER}/{link}": f"{FOLDER}/{name}" for link, name in links.items()},
            "/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi",
        }

    def test_a_host_with_the_toolkits_hooks_only(self, tmp_path: Path) -> None:
        """The links, and the cache of the loader, are made by the program on the host; links are then no mounts."""
        spec = looked_at(Host("kubeadm", tmp_path, without=["/run/cdi/nvidia.yaml"]))
        links, cache = spec["containerEdits"]["hooks"]
        assert {links["path"], cache["path"]} == {"/usr/bin/nvidia-cdi-hook"}
        assert links["args"][:4] == [
            *("nvidia-cdi-hook", "create-symlinks", "--link"),
            f"libcuda.so.{DRIVER}::{FOLDER}/libcuda.so",
        ]
        assert cache["args"] == ["nvidia-cdi-hook", "update-ldcache", "--folder", FOLDER]
        assert f"{FOLDER}/libcuda.so.1" not in mounts(spec)

    def test_an_older_toolkit_has_its_hooks_in_nvidia_ctk(self, tmp_path: Path) -> None:
        """Before 1.16, there was no program nvidia-cdi-hook; the same hooks are commands of `nvidia-ctk hook`."""
        host = Host("kubeadm", tmp_path, without=["/run/cdi/nvidia.yaml", "/usr/bin/nvidia-cdi-hook"])
        (host.root / "usr/bin/nvidia-ctk").write_text("no program")
        *_, cache = looked_at(host)["containerEdits"]["hooks"]
        assert cache["args"][:3] == ["nvidia-ctk", "hook", "update-ldcache"]

    def test_a_driver_with_a_root_of_its_own(self, tmp_path: Path) -> None:
        """Files are mounted from below the driver root of the host, to where they would be without that root."""
        host = Host("operator", tmp_path, without=["/usr/local/nvidia/toolkit"])
        assert mounts(looked_at(host))[f"{FOLDER}/{LIBRARIES[0]}"] == f"/run/nvidia/driver{FOLDER}/{LIBRARIES[0]}"

    def test_device_nodes_elsewhere(self, tmp_path: Path) -> None:
        """With device nodes below the driver root, the specification needs the version that can say so."""
        host = Host("bare", tmp_path)
        host.flags["nvidiaDevRoot"] = "/run/nvidia/driver"
        spec = looked_at(host)
        assert spec["cdiVersion"] == "0.5.0"
        assert nodes(spec)[UUIDS[1]] == [{"path": "/dev/nvidia1", "hostPath": "/run/nvidia/driver/dev/nvidia1"}]

    def test_mig_instances(self, tmp_path: Path) -> None:
        """An instance has the node of its card and its capabilities; without known capabilities it has no device."""
        node = replace(a_mig_node(("1g.5gb", "1g.5gb")), driver_version=DRIVER)
        known, unknown = node.instances
        assert known.mig is not None
        assert unknown.mig is not None
        unknown = replace(unknown, mig=replace(unknown.mig, capabilities=None))
        described = nodes(looked_at(Host("bare", tmp_path), replace(node, instances=(known, unknown))))
        caps = [{"path": f"/dev/nvidia-caps/nvidia-cap{number}"} for number in known.mig.capabilities or ()]
        assert described == {
            node.cards[0].uuid: [{"path": "/dev/nvidia0"}],
            known.uuid: [{"path": "/dev/nvidia0"}, *caps],
        }


class TestTheGenerator:
    """A specification by `nvidia-ctk`, which a program stands for."""

    @pytest.mark.parametrize("name", ["kubeadm", "operator"])
    def test_nvidias_generator_comes_first(self, name: str, tmp_path: Path, log: Log) -> None:
        """Paths in this container become paths of the host; hooks are the generator's; only our GPUs are devices."""
        host = Host(name, tmp_path)
        for each in host.spec_dirs[1].iterdir():
            each.unlink()
        host.with_generator(*UUIDS)
        spec = looked_at(host)
        driver, toolkit = ("", "/usr/bin") if name == "kubeadm" else ("/run/nvidia/driver", "/usr/local/nvidia/toolkit")
        assert mounts(spec) == {f"{FOLDER}/{each}": f"{driver}{FOLDER}/{each}" for each in LIBRARIES}
        assert spec["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidiactl"}]
        assert list(nodes(spec)) == UUIDS
        (hook,) = spec["containerEdits"]["hooks"]
        assert hook["path"] == f"{toolkit}/nvidia-cdi-hook"
        (told,) = [each for each in log if each["event"] == "cdi_spec_written"]
        assert told["program"] == ("nvidia-ctk" if name == "kubeadm" else "nvidia-ctk.real")
        assert sorted(path.name for path in host.spec_dirs[1].iterdir()) == [host.own.name]

    def test_a_gpu_that_the_generator_leaves_out_is_added(self, tmp_path: Path) -> None:
        """NVIDIA's generator describes no card in MIG mode; without a MIG strategy, gpushare offers the card."""
        host = Host("kubeadm", tmp_path, without=["/run/cdi/nvidia.yaml"])
        host.with_generator(UUIDS[0])
        host.flags["nvidiaDevRoot"] = "/run/nvidia/driver"
        spec = looked_at(host)
        assert nodes(spec)[UUIDS[1]] == [{"path": "/dev/nvidia1", "hostPath": "/run/nvidia/driver/dev/nvidia1"}]

    @pytest.mark.parametrize(
        ("program", "reason"),
        [
            ("#!/bin/sh\necho no option --dev-root >&2\nexit 1", "exit status 1: no option --dev-root"),
            ("#!/bin/sh\nexit 0", "No such file"),
            ("#!/no/such/program", "No such file"),
            (WRITES.replace("TEXT", "{"), "Expecting"),
            (WRITES.replace("TEXT", "[]"), "wrote no specification of the kind gpushare/gpu"),
            (WRITES.replace("TEXT", '{"kind": "gpushare/gpu"}'), "wrote a specification of another form"),
        ],
    )
    def test_a_generator_that_fails_is_told_once_and_gpushare_writes_the_smallest(
        self, program: str, reason: str, tmp_path: Path, log: Log
    ) -> None:
        """An old, broken or foreign program costs a warning, and no look after that runs it again."""
        host = Host("kubeadm", tmp_path, without=["/run/cdi/nvidia.yaml"])
        calls = host.with_generator(*UUIDS)
        calls.with_name("nvidia-ctk").write_text(program)
        cdi = host.cdi()
        cdi.look(TWO, host.settings())
        assert list(nodes(written(host))) == UUIDS
        host.own.unlink()
        cdi.look(TWO, host.settings())
        (told,) = [each["reason"] for each in log if each["event"] == "cdi_generator_failed"]
        assert told.startswith("/usr/bin/nvidia-ctk ")
        assert reason in told
        assert [each["program"] for each in log if each["event"] == "cdi_spec_written"] == ["gpushare"] * 2


class TestKeepingItTrue:
    """The file while GPUs, driver and other programs change."""

    def test_a_file_that_is_true_is_not_written_again(self, tmp_path: Path) -> None:
        """Container runtimes read all specifications again after each change of a file."""
        host = Host("bare", tmp_path)
        cdi = host.cdi()
        cdi.look(TWO, host.settings())
        first = host.own.stat().st_ino
        cdi.look(TWO, host.settings())
        cdi.look(replace(TWO, cards=TWO.cards[:1]), host.settings())
        assert host.own.stat().st_ino == first

    def test_a_new_gpu_and_another_driver_are_described(self, tmp_path: Path) -> None:
        """A GPU that is added, and a driver that is upgraded, change the file at the next look."""
        host = Host("bare", tmp_path)
        cdi = host.cdi()
        cdi.look(replace(TWO, cards=TWO.cards[:1]), host.settings())
        assert list(nodes(written(host))) == UUIDS[:1]
        cdi.look(TWO, host.settings())
        assert list(nodes(written(host))) == UUIDS
        for name in LIBRARIES:
            (host.root / FOLDER[1:] / name).rename(host.root / FOLDER[1:] / name.replace(DRIVER, "590.1"))
        cdi.look(replace(TWO, driver_version="590.1"), host.settings())
        assert f"{FOLDER}/libcuda.so.590.1" in mounts(written(host))

    def test_a_file_that_others_change_or_remove_is_written_again(self, tmp_path: Path) -> None:
        """Whatever happens to the file, the next look makes it true."""
        host = Host("bare", tmp_path)
        cdi = host.cdi()
        cdi.look(TWO, host.settings())
        host.own.write_text("{}")
        cdi.look(TWO, host.settings())
        assert list(nodes(written(host))) == UUIDS
        host.own.unlink()
        cdi.look(TWO, host.settings())
        assert list(nodes(written(host))) == UUIDS

    def test_the_file_goes_at_the_end_unless_another_daemon_has_written_it(self, tmp_path: Path, log: Log) -> None:
        """A daemon that ends while the next one runs leaves the file of the next one alone, and writes no more."""
        host = Host("bare", tmp_path)
        last, following = host.cdi(), host.cdi()
        last.look(TWO, host.settings())
        following.look(TWO, host.settings())
        newer = host.own.stat().st_ino
        last.look(TWO, host.settings())
        assert host.own.stat().st_ino == newer
        last.close()
        last.look(TWO, host.settings())
        assert host.own.exists()
        following.close()
        assert not host.own.exists()
        assert [each["path"] for each in log if each["event"] == "cdi_spec_removed"] == [str(host.own)]

    def test_the_file_goes_at_the_end_also_where_it_could_not_be_made_true(self, tmp_path: Path) -> None:
        """A file that an upgrade of the driver has made useless is nobody else's to remove."""
        host = Host("bare", tmp_path)
        cdi = host.cdi()
        cdi.look(TWO, host.settings())
        cdi.look(replace(TWO, driver_version="590.1"), host.settings())
        assert cdi.devices is not None
        assert cdi.devices.own.startswith("no libcuda.so.590.1 ")
        cdi.close()
        assert not host.own.exists()

    def test_a_specification_that_is_made_while_the_daemon_ends_is_not_written(self, tmp_path: Path) -> None:
        """The end does not wait for `nvidia-ctk`, and no file appears after the end."""
        host, gate = Host("kubeadm", tmp_path, without=["/run/cdi/nvidia.yaml"]), tmp_path / "gate"
        os.mkfifo(gate)
        program = host.with_generator(*UUIDS).with_name("nvidia-ctk")
        program.write_text(f"#!/bin/sh\nread opened < {gate}\nexit 1\n")
        cdi = host.cdi()
        look = threading.Thread(target=cdi.look, args=(TWO, host.settings()))
        look.start()
        with gate.open("w"):  # opens when the program has opened the other end
            cdi.close()
        look.join()
        assert not host.own.exists()

    def test_without_a_gpu_nothing_is_written(self, tmp_path: Path) -> None:
        """A container runtime refuses a specification without devices."""
        host = Host("bare", tmp_path)
        cdi = host.cdi()
        for _ in range(2):
            cdi.look(replace(TWO, cards=()), host.settings())
        assert not host.own.exists()

    def test_nothing_is_written_without_cdi(self, tmp_path: Path) -> None:
        """Other strategies need no specification; one that containers of an earlier config use stays."""
        host = Host("bare", tmp_path)
        cdi, without = host.cdi(), host.settings(plugin={"deviceListStrategy": "envvar"})
        cdi.look(TWO, without)
        assert (cdi.devices, host.own.exists()) == (None, False)
        cdi.look(TWO, host.settings())
        cdi.look(TWO, without)
        assert host.own.exists()

    def test_the_first_look_writes_only_what_is_missing(self, tmp_path: Path) -> None:
        """The offer waits for the first look; where NVIDIA's specification has all, our own is written afterwards.

        It is written nevertheless: a container that got a device of ours earlier may start again.
        """
        host = Host("kubeadm", tmp_path)
        calls = host.with_generator(*UUIDS)
        cdi = host.cdi()
        cdi.look(TWO, host.settings())
        assert (calls.exists(), host.own.exists()) == (False, False)
        cdi.look(TWO, host.settings())
        assert (len(calls.read_text()), host.own.exists()) == (1, True)
        assert cdi.devices is not None
        assert {f"{kind}={uuid}" for kind in ("nvidia.com/gpu", OWN_KIND) for uuid in UUIDS} <= cdi.devices.files.keys()


class TestTrouble:
    """What makes a specification impossible is said in words, and nothing ends."""

    def test_a_directory_that_is_not_mounted(self, tmp_path: Path, log: Log) -> None:
        """The directory is never made: in a container it would be of no use; the words are logged once."""
        host = Host("bare", tmp_path, without=["/run/cdi"])
        cdi = host.cdi()
        cdi.look(TWO, host.settings())
        cdi.look(TWO, host.settings())
        assert cdi.devices is not None
        assert cdi.devices.own == (
            f"{host.spec_dirs[1]} does not exist here; mount the directory of the host, as the chart does"
        )
        assert not host.spec_dirs[1].exists()
        (told,) = [each for each in log if each["event"] == "cdi_spec_not_written"]
        assert told["reason"] == cdi.devices.own

    def test_a_driver_that_is_not_mounted(self, tmp_path: Path) -> None:
        """Without the driver's libraries, containers could not use a GPU: no specification is better than that one."""
        host = Host("bare", tmp_path, without=["/usr"])
        cdi = host.cdi()
        cdi.look(TWO, host.settings())
        assert cdi.devices is not None
        assert cdi.devices.own.startswith(f"no libcuda.so.{DRIVER} below {host.driver_here} in this container; mount ")
        shutil.move(Host("bare", tmp_path / "whole").root / "usr", host.root)
        cdi.look(TWO, host.settings())
        assert cdi.devices.own == ""
        assert host.own.exists()

    def test_a_folder_of_programs_that_cannot_be_looked_into(self, tmp_path: Path) -> None:
        """A look never fails: an error of a look would make all GPUs unhealthy."""
        host = Host("bare", tmp_path)
        plugin = host.flags["plugin"]
        assert isinstance(plugin, dict)
        cdi = host.cdi()
        cdi.look(TWO, host.settings(plugin={**plugin, "nvidiaCTKPath": f"/{'x' * 300}/nvidia-ctk"}))
        assert cdi.devices is not None

    def test_a_file_that_cannot_be_replaced(self, tmp_path: Path) -> None:
        """The reason of the file system is passed on; a specification that was written before is no longer trusted."""
        host = Host("bare", tmp_path)
        host.own.mkdir()
        cdi = host.cdi()
        cdi.look(TWO, host.settings())
        assert cdi.devices is not None
        assert "Is a directory" in cdi.devices.own
