"""The device plugins of the node: ours, and others that give the same GPUs to pods.

Facts: NVIDIA's device plugin serves each resource at `nvidia-<resource without domain>.sock`
(NVIDIA/k8s-device-plugin, internal/plugin/server.go, `getPluginSocketPath`; HAMi's and nos' plugins come from the
same code); Aliyun's at `aliyungpushare.sock` (AliyunContainerService/gpushare-device-plugin, pkg/gpu/nvidia/const.go);
Volcano's at `volcano.sock` (volcano-sh/devices, pkg/plugin/nvidia/const.go). NVIDIA's operator gives nodes the label
`nvidia.com/gpu.deploy.device-plugin=true`, and runs its plugin there; another value stays (NVIDIA/gpu-operator,
controllers/state_manager.go, `addGPUStateLabels`). `kubectl label` refuses to change a value without `--overwrite`
(kubernetes.io, kubectl label).
"""

import re
from collections.abc import Iterator

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.schema.names import WHOLE_GPU
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, locked
from gpushare_plugin.doctor.node.sockets import listens
from gpushare_plugin.doctor.subjects.kubelet import CHECKPOINT, PLUGIN_DIRECTORY, KubeletFacts
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET, LOCK_FILE, SOCKET_PREFIX

OURS, OTHERS = "gpushare", "other device plugins"
_OF_GPUS = {
    r"nvidia-.*\.sock": "NVIDIA's device plugin, or a fork such as HAMi or nos,",
    r"nvidia\.sock": "NVIDIA's device plugin",
    r"aliyungpushare\.sock": "Aliyun's device plugin",
    r"volcano\.sock": "Volcano's device plugin",
}
_NAMES_TO_SHOW = 5


class PluginFacts(Struct, frozen=True):
    """The device plugins of the node."""

    ours: bool | None
    """Whether `gpushare run` serves the plugin directory; None where that cannot be seen."""
    of_gpus: tuple[str, ...] = ()
    """Sockets at which another plugin of NVIDIA GPUs listens."""
    of_others: tuple[str, ...] = ()
    """Sockets of plugins of other devices, and of plugins that do not listen."""
    unknown: tuple[str, ...] = ()
    """The sockets of these at which a plugin listens that may be of any devices."""


def read_plugins(host: HostRoot) -> PluginFacts:
    """Return the device plugins of the node."""
    if not host.is_directory(PLUGIN_DIRECTORY):
        return PluginFacts(None)
    names = host.names(PLUGIN_DIRECTORY, "*.sock")
    if PLUGIN_DIRECTORY in host.refused:
        return PluginFacts(None)
    others = [name for name in names if name != KUBELET_SOCKET and not name.startswith(SOCKET_PREFIX)]
    listening = [name for name in others if listens(host, f"{PLUGIN_DIRECTORY}/{name}") is not False]
    of_gpus = [name for name in listening if _maker(name)]
    return PluginFacts(
        locked(host.resolved(PLUGIN_DIRECTORY) / LOCK_FILE),
        tuple(of_gpus),
        tuple(name for name in others if name not in of_gpus),
        tuple(name for name in listening if name not in of_gpus),
    )


def _maker(name: str) -> str | None:
    return next((maker for pattern, maker in _OF_GPUS.items() if re.fullmatch(pattern, name)), None)


def judge_plugins(facts: PluginFacts, kubelet: KubeletFacts, node: str) -> Iterator[Diagnosis]:
    """Yield the lines about our plugin and the others.

    `kubelet` has what the checkpoint says of resources; `node` is the name of the node, for commands.
    """
    if facts.ours is None:
        reason = f"{PLUGIN_DIRECTORY} is not there, or cannot be read by this process"
        yield from (not_looked_at(subject, reason) for subject in (OURS, OTHERS))
        return
    if facts.ours:
        yield right(OURS, "the daemon runs on this node; `gpushare list` in its pod shows what it offers")
    else:
        yield not_looked_at(
            OURS, "the daemon does not run on this node (yet), which is no fault; start it once nothing is wrong"
        )
    if facts.of_gpus:
        yield _of_gpus(facts, node)
    elif reason := _not_known(facts, kubelet):
        yield not_looked_at(OTHERS, reason)
    else:
        others = [f"{name} (nobody listens)" if _maker(name) else name for name in facts.of_others]
        found = f"none of NVIDIA GPUs; other sockets: {some_of(others, _NAMES_TO_SHOW)}"
        yield right(OTHERS, found if others else "none")


def _of_gpus(facts: PluginFacts, node: str) -> Diagnosis:
    """Return the line about other plugins of NVIDIA GPUs."""
    makers = dict.fromkeys(maker for name in facts.of_gpus if (maker := _maker(name)))
    return wrong(
        OTHERS,
        f"{' and '.join(makers)} serves at {some_of(facts.of_gpus, _NAMES_TO_SHOW)}: both plugins give the same "
        "GPUs to pods, and neither knows of the other's pods",
        "end the pods of this node that have a GPU of the other plugin (nvidia.com/gpu and the like), since gpushare "
        "does not know of them, and then keep that plugin off this node: with NVIDIA's operator `kubectl label "
        f"--overwrite node {node} nvidia.com/gpu.deploy.device-plugin=false`, or devicePlugin.enabled=false for all "
        "nodes; otherwise by the nodeSelector of its DaemonSet",
    )


def _not_known(facts: PluginFacts, kubelet: KubeletFacts) -> str:
    """Return why nobody can say whether plugins that doctor does not know serve GPUs; empty if that is known."""
    names = some_of(facts.unknown, _NAMES_TO_SHOW)
    healthy = dict(kubelet.listed).get(WHOLE_GPU)
    if not facts.unknown:
        return ""
    if kubelet.failure:
        return (
            f"the kubelet's checkpoint cannot be read, so nothing shows whether {names} serves {WHOLE_GPU}: mend the "
            f"line about {CHECKPOINT} first"
        )
    if facts.ours or not healthy:
        return ""
    return (
        f"the kubelet's checkpoint shows {WHOLE_GPU} ({healthy} healthy), and no plugin that doctor knows serves that: "
        f"find out whether {names} does, by the pods of this node that mount {PLUGIN_DIRECTORY}, and keep such a "
        "plugin off this node"
    )
