"""Tests that whoever does what doctor says, line after line, ends with a node on which nothing is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.doctor.subjects.kubelet import PLUGIN_DIRECTORY
from gpushare_plugin.testing.hosts import (
    BARE,
    DRIVER,
    K3S,
    KUBEADM_CONTAINERD_1_7,
    KUBEADM_CONTAINERD_2,
    OPERATOR_24,
    OPERATOR_25_10,
    HostDescription,
    specification,
    without_operator,
)
from tests.unit.doctor.examining import CDI, ENVVAR, MPS, examined, wrong_lines

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

# Four faults at once: the driver was upgraded without a reboot, a file with one setting hides NVIDIA's handler from
# containerd 1.7 and turns CDI off, and a full disk tore the kubelet's checkpoint.
SITE, SECTION = "/etc/containerd/conf.d/50-site.toml", "io.containerd.grpc.v1.cri"
CHECKPOINT = f"{PLUGIN_DIRECTORY}/kubelet_internal_checkpoint"
OFF = f'[plugins."{SECTION}"]\nenable_cdi = false\n'
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
TORN = KUBEADM_CONTAINERD_1_7.edited(CONTAINERD, "version = 2\n", f"version = 2\n{IMPORTS}") + HostDescription(
    {
        SITE: f"version = 2\n{OFF}",
        CHECKPOINT: '{"Data": {"Pod',
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n",
        "/sys/module/nvidia/version": "570.86.15\n",
    },
    directories=("/var/lib/kubelet/plugins_registry",),
    sockets=(f"{PLUGIN_DIRECTORY}/of-somebody.sock",),
)
MOVED = TORN.files[CONTAINERD].replace(IMPORTS, "").replace(f'[plugins."{SECTION}"]\n', OFF)

# K3s that was stopped while the toolkit was removed, with the plugin of somebody else that serves GPUs under MPS.
PIPES = "/run/nvidia/mps/nvidia.com/gpu/pipe/control"
PACKAGE = {path: text for path, text in K3S.files.items() if path.startswith("/usr/bin/nvidia-c")}
STOPPED = K3S.without(*PACKAGE, PLUGIN_SOCKET, POD_RESOURCES) + HostDescription(
    sockets=(PIPES, f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock")
)

# NVIDIA's operator whose toolkit is not ready, with a specification of the driver before and a copy of another one.
OF_OPERATOR = specification(hook=f"{TOOLKIT}/nvidia-cdi-hook", root="/run/nvidia/driver")
NOT_READY = BESIDE.without("/run/nvidia/validations/toolkit-ready") + HostDescription(
    {
        "/etc/cdi/nvidia.yaml": OF_OPERATOR.replace(DRIVER, "570.86.15"),
        "/etc/cdi/copy.yaml": OF_OPERATOR,
    }
)

REFRESHES = (
    "systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service && systemctl restart "
    "nvidia-cdi-refresh.service"
)

BY_CLAIM = replace(ENVVAR, dra="gpu.gpushare.io")
"""A config that gives GPUs by claim."""

HOOK = f"{TOOLKIT}/nvidia-cdi-hook"
GENERATED = BESIDE.edited(
    f"{TOOLKIT}/.config{SETTINGS.removeprefix('/etc')}", "management.nvidia", "nvidia"
) + HostDescription({"/etc/cdi/nvidia.yaml": OF_OPERATOR})
"""NVIDIA's operator whose runtime looks GPUs up in a generated specification."""

OLD_KERNEL = {path: UPGRADED.files[path] for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version")}

# K3s whose template repeats two tables of K3s itself, and a handler of an operator that is gone.
OF_K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
TEMPLATE, MADE = f"{OF_K3S}/config-v3.toml.tmpl", f"{OF_K3S}/config.toml"
NEW_SECTION = "io.containerd.cri.v1.runtime"
BASE = '{{ template "base" . }}\n'
ITSELF = f"version = 3\n[plugins.'{NEW_SECTION}']\nenable_selinux = false\n"
AGAIN = f"[plugins.'{NEW_SECTION}']\nenable_cdi = true\n"
OF_GONE = (
    f"[plugins.'{NEW_SECTION}'.containerd.runtimes.nvidia.options]\nBinaryName = '{TOOLKIT}/nvidia-container-runtime'\n"
)
REPEATED = K3S.without(*PACKAGE) + HostDescription({TEMPLATE: BASE + AGAIN + OF_GONE, MADE: ITSELF + AGAIN + OF_GONE})

# containerd 2.1 that does not import the drop-in file of NVIDIA's handler, which is of a version too new for 2.1, and
# whose default handler this is.
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
NOT_IMPORTED = (
    KUBEADM_CONTAINERD_2.edited(CONTAINERD, IMPORTS, "imports = []\n")
    .edited(CONTAINERD, '= "runc"', '= "nvidia"')
    .edited(DROP_IN, "version = 3", "version = 4")
)

# containerd 1.7 with a file that has the version of containerd 2, and a file of the site that hides the handler.
OF_CONTAINERD_2 = KUBEADM_CONTAINERD_1_7.edited(
    CONTAINERD, "version = 2\n", f"version = 3\n{IMPORTS}"
) + HostDescription({SITE: OFF})

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
                "run `systemctl start kubelet`",
                lambda host: host + HostDescription(sockets=(PLUGIN_SOCKET, POD_RESOURCES)),
            ),
            Step(
                "nvidia-ctk runtime configure --runtime=containerd",
                lambda host: host + HostDescription({CONTAINERD: KUBEADM_CONTAINERD_1_7.files[CONTAINERD]}),
            ),
            Step(
                "set no-cgroups = false", lambda host: host.edited(SETTINGS, "no-cgroups = true", "no-cgroups = false")
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
    "four faults of kubeadm with containerd 1.7": (
        TORN,
        BY_CLAIM,
        (
            Step(
                f"move all settings of that section into {SITE}, those of {CONTAINERD} included",
                lambda host: host + HostDescription({SITE: MOVED}),
            ),
            Step(
                f"remove kubelet_internal_checkpoint in {PLUGIN_DIRECTORY}",
                lambda host: host + HostDescription({CHECKPOINT: KUBEADM_CONTAINERD_1_7.files[CHECKPOINT]}),
            ),
            Step("reboot the node", rebooted),
            Step(
                f"set `enable_cdi = true` in [plugins.'{SECTION}'] of {SITE}",
                lambda host: host.edited(SITE, "enable_cdi = false", "enable_cdi = true"),
            ),
        ),
    ),
    "K3s without its toolkit, beside another plugin": (
        STOPPED,
        MPS,
        (
            Step(
                "run `systemctl start k3s` (on a node without control plane `systemctl start k3s-agent`)",
                lambda host: host + HostDescription(sockets=(PLUGIN_SOCKET, POD_RESOURCES)),
            ),
            Step("install the package nvidia-container-toolkit", lambda host: host + HostDescription(PACKAGE)),
            Step(
                "and then delete its DaemonSet",
                lambda host: host.without(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock", PIPES),
            ),
        ),
    ),
    "NVIDIA's operator without the program of hooks": (
        GENERATED.without(HOOK),
        ENVVAR,
        (
            Step("because its start installs the toolkit", lambda host: host + HostDescription({HOOK: ""})),
            Step(
                "nvidia.com/gpu.deploy.device-plugin=false",
                lambda host: host.without(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock"),
            ),
        ),
    ),
    "K3s without the program of hooks": (
        K3S.without("/usr/bin/nvidia-cdi-hook") + HostDescription({"/etc/cdi/nvidia.yaml": specification()}),
        CDI,
        (
            Step(
                "apt-get install --reinstall nvidia-container-toolkit-base",
                lambda host: host + HostDescription({"/usr/bin/nvidia-cdi-hook": ""}),
            ),
        ),
    ),
    "NVIDIA's operator behind a runtime without CRI": (
        OPERATOR_24.edited(CONTAINERD, "version = 2", 'version = 2\ndisabled_plugins = ["cri"]').without(
            "/run/nvidia/validations/toolkit-ready"
        ),
        ENVVAR,
        (
            Step(
                f"remove cri from disabled_plugins in {CONTAINERD}",
                lambda host: host.edited(CONTAINERD, 'disabled_plugins = ["cri"]', ""),
            ),
            Step(
                "first the pods nvidia-driver-daemonset and nvidia-container-toolkit-daemonset",
                lambda host: host + HostDescription({"/run/nvidia/validations/toolkit-ready": ""}),
            ),
        ),
    ),
    "NVIDIA's operator whose driver is not loaded": (
        GENERATED.without(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock") + HostDescription(OLD_KERNEL),
        ENVVAR,
        (
            Step(
                "see the state and the log of the pod nvidia-driver-daemonset",
                lambda host: host + HostDescription({path: OPERATOR_24.files[path] for path in OLD_KERNEL}),
            ),
        ),
    ),
    "NVIDIA's operator that was removed": (
        without_operator(OPERATOR_24).without("/run/nvidia") + BARE,
        ENVVAR,
        (
            Step(
                f"remove the handlers with programs in {TOOLKIT} from {CONTAINERD}, `rm -r {TOOLKIT}`, and run `nvidia",
                lambda _host: KUBEADM_CONTAINERD_1_7,
            ),
        ),
    ),
    "NVIDIA's operator that is not ready": (
        NOT_READY,
        ENVVAR,
        (
            Step(
                "first the pods nvidia-driver-daemonset and nvidia-container-toolkit-daemonset",
                lambda host: host + HostDescription({"/run/nvidia/validations/toolkit-ready": ""}),
            ),
            Step(
                "--output=/etc/cdi/nvidia.yaml",
                lambda host: (
                    host.edited(f"{TOOLKIT}/.config{SETTINGS.removeprefix('/etc')}", "management.nvidia", "nvidia")
                    + HostDescription({"/etc/cdi/nvidia.yaml": OF_OPERATOR})
                ),
            ),
            Step("the one that nothing writes again", lambda host: host.without("/etc/cdi/copy.yaml")),
            Step(
                "nvidia.com/gpu.deploy.device-plugin=false",
                lambda host: host.without(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock"),
            ),
        ),
    ),
    "three faults of K3s": (
        REPEATED,
        CDI,
        (
            Step(
                f"remove [plugins.'{NEW_SECTION}'], which K3s writes itself for `{BASE.strip()}`, from {TEMPLATE} (of",
                lambda host: host + HostDescription({TEMPLATE: BASE + OF_GONE, MADE: ITSELF + OF_GONE}),
            ),
            Step(
                f"remove the handler from {TEMPLATE}, of which each start makes {MADE}, and run",
                lambda host: host + HostDescription({TEMPLATE: BASE, MADE: ITSELF}),
            ),
        ),
    ),
    "three faults of containerd 2.1": (
        NOT_IMPORTED,
        ENVVAR,
        (
            Step(
                f"write {DROP_IN} with version = 3 and the sections of that version",
                lambda host: host.edited(DROP_IN, "version = 4", "version = 3").edited(
                    CONTAINERD, "imports = []\n", IMPORTS
                ),
            ),
        ),
    ),
    "three faults of containerd 1.7": (
        OF_CONTAINERD_2,
        CDI,
        (
            Step(
                f"write {CONTAINERD} (version 3) with version = 2 and the sections of that version",
                lambda host: host.edited(CONTAINERD, "version = 3", "version = 2"),
            ),
            Step(
                f"move all settings of that section into {SITE}, those of {CONTAINERD} included",
                lambda host: host + HostDescription({SITE: MOVED}),
            ),
            Step(
                f"set `enable_cdi = true` in [plugins.'{SECTION}'] of {SITE}",
                lambda host: host.edited(SITE, "enable_cdi = false", "enable_cdi = true"),
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
        for place, line in enumerate(lines):
            later = [other.subject for other in lines[place + 1 :] if other.subject != line.subject]
            assert not any(f" {subject}" in (line.remedy or "") for subject in later), "an item needs a later one first"
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
