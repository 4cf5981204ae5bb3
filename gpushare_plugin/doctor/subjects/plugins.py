"""The device plugins of the node: ours, and others that give the same GPUs to pods.

Facts: NVIDIA's device plugin serves each resource at `nvidia-<resource without domain>.sock`
(NVIDIA/k8s-device-plugin, internal/plugin/server.go, `getPluginSocketPath`; HAMi's and nos' plugins come from the
same code); Aliyun's at `aliyungpushare.sock` (AliyunContainerService/gpushare-device-plugin, pkg/gpu/nvidia/const.go);
Volcano's at `volcano.sock` (volcano-sh/devices, pkg/plugin/nvidia/const.go). NVIDIA's operator gives nodes the label
`nvidia.com/gpu.deploy.device-plugin=true`, and runs its plugin there; another value stays (NVIDIA/gpu-operator,
controllers/state_manager.go, `addGPUStateLabels`). The DaemonSet of Aliyun's plugin is gpushare-device-plugin-ds, on
nodes with the label gpushare=true (device-plugin-ds.yaml there), that of HAMi's on nodes with gpu=on
(Project-HAMi/HAMi, charts/hami/values.yaml). `kubectl label` refuses to change a value without `--overwrite`
(kubernetes.io, kubectl label).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.schema.names import WHOLE_GPU
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, locked
from gpushare_plugin.doctor.node.sockets import listens
from gpushare_plugin.doctor.subjects.kubelet import CHECKPOINT, PLUGIN_DIRECTORY, KubeletFacts
from gpushare_plugin.doctor.subjects.operator import POD_LOGS
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET, LOCK_FILE, SOCKET_PREFIX

OURS, OTHERS = "gpushare", "other device plugins"
_OWN_LABELS = "the labels gpushare=true and nvidia.com/gpu.present=true bring the daemon of gpushare, too"
_OPERATORS = "nvidia.com/gpu.deploy.device-plugin=false"


class _Maker(NamedTuple):
    """A device plugin of others."""

    name: str
    """The name, in words."""
    resources: str
    """The resources by which pods ask for its GPUs, in words."""
    removal: str
    """What keeps the plugin off the node, as an instruction."""


_BY_SELECTOR = f"by the nodeSelector or affinity of its DaemonSet, with another label than ours: {_OWN_LABELS}"
_NVIDIAS = _Maker(
    "NVIDIA's device plugin",
    "nvidia.com/gpu and the like",
    f"delete its DaemonSet, or keep it off this node {_BY_SELECTOR}",
)
_FORK = _NVIDIAS._replace(
    name="NVIDIA's device plugin, or a fork such as HAMi or nos,",
    removal=f"delete its DaemonSet, or keep it off this node: HAMi's by `kubectl label node {{node}} gpu-`, others "
    f"{_BY_SELECTOR}",
)
_OF_GPUS = {
    r"nvidia-.*\.sock": _FORK,
    r"nvidia\.sock": _NVIDIAS,
    r"aliyungpushare\.sock": _Maker(
        "Aliyun's device plugin",
        "aliyun.com/gpu-mem",
        "delete its DaemonSet (`kubectl -n kube-system delete daemonset gpushare-device-plugin-ds`), or change the "
        f"nodeSelector of that to another label: {_OWN_LABELS}",
    ),
    r"volcano\.sock": _Maker(
        "Volcano's device plugin",
        "volcano.sh/gpu-memory and the like",
        f"delete its DaemonSet, or keep it off this node {_BY_SELECTOR}",
    ),
}
_NAMES_TO_SHOW = 5
_POD = re.compile(r"([^_]+)_(gpushare-[a-z0-9]{5})_")
"""The directory of the logs of a pod of the chart's DaemonSet: namespace, name and UID (pkg/kubelet/kuberuntime)."""


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
    pod: str = ""
    """The daemon's pod on the node, as namespace/name; empty where none is seen."""


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
        next((f"{found[1]}/{found[2]}" for name in host.names(POD_LOGS) if (found := _POD.match(name))), ""),
    )


def _maker(name: str) -> _Maker | None:
    return next((maker for pattern, maker in _OF_GPUS.items() if re.fullmatch(pattern, name)), None)


def judge_plugins(
    facts: PluginFacts, kubelet: KubeletFacts, node: str, *, operator: bool | None
) -> Iterator[Diagnosis]:
    """Yield the lines about our plugin and the others.

    `kubelet` has what the checkpoint says of resources; `node` is the name of the node, for commands, and `operator` is
    whether NVIDIA's operator runs on the node, None where that is not known.
    """
    if facts.ours is None:
        reason = f"{PLUGIN_DIRECTORY} is not there, or cannot be read by this process"
        yield from (not_looked_at(subject, reason) for subject in (OURS, OTHERS))
        return
    if facts.ours:
        yield right(OURS, "the daemon runs on this node; `gpushare list` in its pod shows what it offers")
    elif facts.pod:
        namespace, _, pod = facts.pod.partition("/")
        yield wrong(
            OURS,
            f"its pod {facts.pod} is on this node, and the daemon does not run",
            f"mend what else is wrong; then `kubectl -n {namespace} describe pod {pod}` and `kubectl -n {namespace} "
            f"logs {pod} --previous` say why. docs/cdi.md, The daemon's own GPUs, says how the pod gets the GPUs",
        )
    else:
        yield not_looked_at(
            OURS, "the daemon does not run on this node (yet), which is no fault; start it once nothing is wrong"
        )
    if facts.of_gpus:
        yield _of_gpus(facts, node, operator=operator)
    elif reason := _not_known(facts, kubelet):
        yield not_looked_at(OTHERS, reason)
    else:
        others = [f"{name} (nobody listens)" if _maker(name) else name for name in facts.of_others]
        found = f"none of NVIDIA GPUs; other sockets: {some_of(others, _NAMES_TO_SHOW)}"
        yield right(OTHERS, found if others else "none")


def _of_gpus(facts: PluginFacts, node: str, *, operator: bool | None) -> Diagnosis:
    """Return the line about other plugins of NVIDIA GPUs."""
    makers = list(dict.fromkeys(maker for name in facts.of_gpus if (maker := _maker(name))))
    serve = "serve" if len(makers) > 1 else "serves"
    resources = " or ".join(dict.fromkeys(maker.resources for maker in makers))
    return wrong(
        OTHERS,
        f"{' and '.join(maker.name for maker in makers)} {serve} at {some_of(facts.of_gpus, _NAMES_TO_SHOW)}: "
        "they and gpushare give the same GPUs to pods, and none knows of the pods of another",
        f"end the pods of this node that have a GPU of the other plugin ({resources}), since gpushare does not know of "
        f"them, and then {'; and '.join(_removal(maker, node, operator=operator) for maker in makers)}",
    )


def _removal(maker: _Maker, node: str, *, operator: bool | None) -> str:
    """Return what keeps a plugin off the node, as an instruction; NVIDIA's is removed by the operator that runs it."""
    removal = maker.removal.format(node=node)
    if operator is False or maker not in {_NVIDIAS, _FORK}:
        return removal
    return (
        f"keep that plugin off this node: where NVIDIA's operator runs it, `kubectl label --overwrite node {node} "
        f"{_OPERATORS}`, or devicePlugin.enabled=false for all nodes; otherwise {removal}"
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
