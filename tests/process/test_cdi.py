"""CDI devices from the outside: `check-config` and `list` say which device a node will get, before any pod fails."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_plugin.testing.hosts import DRIVER, GPUS
from gpushare_plugin.testing.nvml import FakeNvml
from tests.hosts import UUIDS, Host
from tests.process.daemon import gpushare

CDI = "version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri}}\n"


@pytest.fixture
def node() -> Iterator[FakeNvml]:
    """Describe the two GPUs of all hosts."""
    with FakeNvml(GPUS, driver_version=DRIVER) as described:
        yield described


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a config that uses CDI."""
    file = tmp_path / "cdi.yaml"
    file.write_text(CDI)
    return file


def environment(node: FakeNvml, host: Host) -> dict[str, str]:
    """Return the environment of a program on a host."""
    return {**node.environment, "CDI_SPEC_DIRS": ",".join(map(str, host.spec_dirs))}


async def test_check_config_says_which_device_a_node_gets(node: FakeNvml, config: Path, tmp_path: Path) -> None:
    """For people a line for each GPU, for programs the names by GPU; without CDI neither."""
    host = environment(node, Host("kubeadm", tmp_path))
    text, data, without = [
        await gpushare("check-config", config, *options, environment=host)
        for options in ((), ("-o", "json"), ("--device-list-strategy", "envvar"))
    ]
    assert text.output.splitlines()[2:] == [
        f"  CDI device of GPU {index}: nvidia.com/gpu={uuid}" for index, uuid in enumerate(UUIDS)
    ]
    (verdict,) = json.loads(data.output)["configs"]
    assert verdict["cdiDevices"] == {str(index): f"nvidia.com/gpu={uuid}" for index, uuid in enumerate(UUIDS)}
    assert "CDI" not in without.output


async def test_check_config_warns_of_a_device_that_pods_will_not_get(
    node: FakeNvml, config: Path, tmp_path: Path
) -> None:
    """Without the driver's libraries, the daemon could not describe the GPUs: that fails with --strict."""
    host = environment(node, Host("operator", tmp_path))
    done = await gpushare("check-config", "--strict", config, environment=host)
    assert done.status == 1
    assert "warning: no CDI specification in " in done.output
    assert f"has nvidia.com/gpu={UUIDS[0]}, nvidia.com/gpu={UUIDS[1]} (found devices of management.nvidia.com/gpu)" in (
        done.output
    )


async def test_check_config_tells_the_device_that_the_daemon_will_describe(
    node: FakeNvml, config: Path, tmp_path: Path
) -> None:
    """Where the daemon can write its own specification, nothing is missing; nothing is written by the check."""
    # The node's library is the stand-in's, not the empty file of the host.
    host = Host("operator", tmp_path, without=["/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"])
    roots = ("--driver-root", "/run/nvidia/driver", "--container-driver-root", host.driver_here)
    done = await gpushare("check-config", "--strict", config, *roots, environment=environment(node, host))
    assert done.status == 0, done.output
    assert f"  CDI device of GPU 1: gpushare/gpu={UUIDS[1]}" in done.output.splitlines()
    assert not host.own.exists()


async def test_list_shows_the_device_of_each_gpu(node: FakeNvml, config: Path, tmp_path: Path) -> None:
    """The plan has the names, as JSON and in the wide table; the table has no such column without CDI."""
    host = environment(node, Host("kubeadm", tmp_path))
    wide, data, without = [
        await gpushare("list", "--config-file", config, *options, environment=host)
        for options in (("-o", "wide"), ("-o", "json"), ("-o", "wide", "--device-list-strategy", "envvar"))
    ]
    assert [gpu["cdiDevice"] for gpu in json.loads(data.output)["gpus"]] == [f"nvidia.com/gpu={uuid}" for uuid in UUIDS]
    assert wide.output.splitlines()[0].rstrip().endswith("CDI DEVICE")
    assert wide.output.splitlines()[1].rstrip().endswith(f"nvidia.com/gpu={UUIDS[0]}")
    assert "CDI" not in without.output


async def test_a_relative_directory_of_specifications_is_refused(node: FakeNvml, config: Path) -> None:
    """The container runtime has absolute directories."""
    done = await gpushare("check-config", config, "--cdi-spec-dirs", "/etc/cdi,run/cdi", environment=node.environment)
    assert (done.status, "found run/cdi, expected absolute paths" in done.errors) == (2, True)
