"""Tests that whoever does what doctor says, line after line, ends with a node on which nothing is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.doctor.subjects.kubelet import PLUGIN_DIRECTORY
from gpushare_plugin.testing.hosts import (
    DRIVER,
    KUBEADM_CONTAINERD_1_7,
    KUBEADM_CONTAINERD_2,
    OPERATOR_25_10,
    HostDescription,
    specification,
)
from tests.unit.doctor.examining import ENVVAR, examined, wrong_lines

CONTAINERD = "/etc/containerd/config.toml"
SETTINGS = "/etc/nvidia-container-runtime/config.toml"


class Step(NamedTuple):
    """The first remedy of a report, and what it does to the node."""

    remedy: str
    """A part of the remedy."""
    done: Callable[[HostDescription], HostDescription]
    """Does on the node what the remedy says."""


def rebooted(host: HostDescription) -> HostDescription:
    """Return the node with the kernel module that is on its disk."""
    return host + HostDescription(
        {
            "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}\n",
            "/sys/module/nvidia/version": f"{DRIVER}\n",
        }
    )


# The package containerd.io of Docker, and NVIDIA's toolkit with a setting for rootless containers.
FRESH = (
    KUBEADM_CONTAINERD_1_7.edited(SETTINGS, "environment = []", "no-cgroups = true")
    + HostDescription({CONTAINERD: 'disabled_plugins = ["cri"]\n'})
).without(PLUGIN_DIRECTORY + "/kubelet.sock")

# The driver was upgraded from 570 by the package manager, and nobody rebooted; the toolkit's mode is cdi.
UPGRADED = KUBEADM_CONTAINERD_2.edited(SETTINGS, 'mode = "auto"', 'mode = "cdi"') + HostDescription(
    {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n",
        "/sys/module/nvidia/version": "570.86.15\n",
        "/run/cdi/nvidia.yaml": specification(driver="570.86.15"),
    }
)

# NVIDIA's operator as it is installed by default, beside gpushare.
BESIDE = OPERATOR_25_10 + HostDescription(sockets=(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock",))

STORIES: dict[str, tuple[HostDescription, ConfigNeeds, tuple[Step, ...]]] = {
    "a fresh node of kubeadm": (
        FRESH,
        ENVVAR,
        (
            Step(
                f"remove cri from disabled_plugins in {CONTAINERD}",
                lambda host: host + HostDescription({CONTAINERD: "version = 2\n"}),
            ),
            Step(
                "nvidia-ctk runtime configure --runtime=containerd",
                lambda host: host + HostDescription({CONTAINERD: KUBEADM_CONTAINERD_1_7.files[CONTAINERD]}),
            ),
            Step(
                "set no-cgroups = false", lambda host: host.edited(SETTINGS, "no-cgroups = true", "no-cgroups = false")
            ),
            Step(
                "start the kubelet",
                lambda host: host + HostDescription(sockets=(f"{PLUGIN_DIRECTORY}/kubelet.sock",)),
            ),
        ),
    ),
    "a driver that was upgraded": (
        UPGRADED,
        ENVVAR,
        (
            Step("reboot the node", rebooted),
            Step(
                "/usr/bin/nvidia-ctk cdi generate --device-name-strategy=uuid --output=/var/run/cdi/nvidia.yaml",
                lambda host: host + HostDescription({"/run/cdi/nvidia.yaml": specification()}),
            ),
        ),
    ),
    "NVIDIA's operator beside gpushare": (
        BESIDE,
        ENVVAR,
        (
            Step(
                "--driver-root=/run/nvidia/driver --nvidia-cdi-hook-path=/usr/local/nvidia/toolkit/nvidia-cdi-hook",
                lambda host: (
                    host
                    + HostDescription(
                        {
                            "/etc/cdi/nvidia.yaml": specification(
                                hook="/usr/local/nvidia/toolkit/nvidia-cdi-hook", root="/run/nvidia/driver"
                            )
                        }
                    )
                ),
            ),
            Step(
                "nvidia.com/gpu.deploy.device-plugin=false",
                lambda host: host.without(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock"),
            ),
        ),
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_remedies_mend_a_node_one_after_the_other(story: str, short_path: Path) -> None:
    """Each remedy makes its line right, makes no other line wrong, and after the last one nothing is wrong."""
    host, needs, steps = STORIES[story]
    before: set[tuple[str, str]] | None = None
    for number, step in enumerate(steps):
        _, report = examined(host, short_path / f"{number}", needs)
        lines = wrong_lines(report)
        assert step.remedy in (lines[0].remedy or ""), lines
        now = {(line.subject, line.found) for line in lines}
        assert before is None or (now != before and len(now) <= len(before))
        before, host = now, step.done(host)
    _, report = examined(host, short_path / "mended", needs)
    assert wrong_lines(report) == []
