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
from tests.unit.doctor.examining import CDI, ENVVAR, examined, wrong_lines

CONTAINERD = "/etc/containerd/config.toml"
TOOLKIT = "/usr/local/nvidia/toolkit"
PLUGIN_SOCKET = f"{PLUGIN_DIRECTORY}/kubelet.sock"
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
SETTINGS = "/etc/nvidia-container-runtime/config.toml"


class Step(NamedTuple):
    """The first remedy of a report, and what it does to the node."""

    remedy: str
    """A part of the remedy."""
    done: Callable[[HostDescription], HostDescription]
    """Does on the node what the remedy says."""
    needs: ConfigNeeds | None = None
    """What the config needs from then on; None where the remedy does not change the config."""


def rebooted(host: HostDescription) -> HostDescription:
    """Return the node with the kernel module that is on its disk, and without what was in /run.

    Services make their sockets there again.
    """
    return host.without(*(path for path in host.files if path.startswith("/run/"))) + HostDescription(
        {
            "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}\n",
            "/sys/module/nvidia/version": f"{DRIVER}\n",
        }
    )


# The package containerd.io of Docker, with which the kubelet does not start, and NVIDIA's toolkit with a setting for
# rootless containers.
FRESH = (
    KUBEADM_CONTAINERD_1_7.edited(SETTINGS, "environment = []", "no-cgroups = true")
    + HostDescription({CONTAINERD: 'disabled_plugins = ["cri"]\n'})
).without(PLUGIN_SOCKET, POD_RESOURCES)

# The driver was upgraded from 570 by the package manager, and nobody rebooted; the toolkit's mode is cdi, and its
# service that writes the specification is off.
UPGRADED = KUBEADM_CONTAINERD_2.edited(SETTINGS, 'mode = "auto"', 'mode = "cdi"') + HostDescription(
    {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n",
        "/sys/module/nvidia/version": "570.86.15\n",
        "/run/cdi/nvidia.yaml": specification(driver="570.86.15"),
        "/etc/systemd/system/nvidia-cdi-refresh.service": "",
    }
)

# NVIDIA's operator as it is installed by default, beside gpushare.
BESIDE = OPERATOR_25_10 + HostDescription(sockets=(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock",))

REFRESHES = (
    "systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service && systemctl restart "
    "nvidia-cdi-refresh.service"
)

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
                "run `systemctl start kubelet`",
                lambda host: host + HostDescription(sockets=(PLUGIN_SOCKET, POD_RESOURCES)),
            ),
        ),
    ),
    "a socket that was deleted": (
        KUBEADM_CONTAINERD_1_7.without(PLUGIN_SOCKET),
        ENVVAR,
        (Step("run `systemctl restart kubelet`", lambda host: host + HostDescription(sockets=(PLUGIN_SOCKET,))),),
    ),
    "a driver that was upgraded": (
        UPGRADED,
        ENVVAR,
        (
            Step("reboot the node", rebooted),
            Step(
                f"the best here first. (a) run `{REFRESHES}`",
                lambda host: host + HostDescription({"/run/cdi/nvidia.yaml": specification()}),
            ),
        ),
    ),
    "NVIDIA's operator beside gpushare, by CDI": (
        BESIDE,
        ENVVAR,
        (
            Step("the best here first. (a) give GPUs by CDI", lambda host: host, CDI),
            Step(
                "nvidia.com/gpu.deploy.device-plugin=false",
                lambda host: host.without(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock"),
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
                    host.edited(f"{TOOLKIT}/.config{SETTINGS.removeprefix('/etc')}", "management.nvidia", "nvidia")
                    + HostDescription(
                        {
                            "/etc/cdi/nvidia.yaml": specification(
                                hook=f"{TOOLKIT}/nvidia-cdi-hook", root="/run/nvidia/driver"
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
        before, host, needs = now, step.done(host), step.needs or needs
    _, report = examined(host, short_path / "mended", needs)
    assert wrong_lines(report) == []


def test_a_reboot_does_not_change_the_advice(short_path: Path) -> None:
    """What is to be done about the specification is the same before and after the reboot that comes first."""
    _, before = examined(UPGRADED, short_path / "before")
    _, after = examined(rebooted(UPGRADED), short_path / "after")
    (line,) = wrong_lines(after)
    assert [each.subject for each in wrong_lines(before)] == ["driver (libraries)", "NVML", "CDI specifications"]
    assert wrong_lines(before)[-1].remedy == line.remedy
