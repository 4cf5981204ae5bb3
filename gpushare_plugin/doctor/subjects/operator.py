"""NVIDIA's GPU operator: whether it runs on the node, and what it has there or left there.

Facts, of NVIDIA/gpu-operator: its validator writes `/run/nvidia/validations/<what>-ready` (in assets,
state-container-toolkit and gpu-feature-discovery wait for `driver-ready` and `toolkit-ready`), and removes these files
when its pod ends (state-operator-validation, `preStop`); the names of its DaemonSets (assets, and for NVIDIADriver
manifests/state-driver); `hostPaths.driverInstallDir` and `toolkit.installDir` (deployments/gpu-operator/values.yaml).
From 25.10 on `cdi.enabled` is true, so its runtime has mode `cdi` and is not the default one; with
`cdi.nriPluginEnabled` the configuration of the container runtime has no handler at all
(controllers/object_controls.go). The kubelet keeps the logs of each pod of the node in a directory with the name of the
pod, and removes those of pods that are gone (Kubernetes, pkg/kubelet/kuberuntime/helpers.go, `BuildPodLogsDirectory`,
and kuberuntime_gc.go, `evictPodLogsDirectories`). A boot empties `/run`: Filesystem Hierarchy Standard 3.0, "/run".
"""

import re
from collections.abc import Iterator

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.subjects.driver import OPERATORS_ROOT
from gpushare_plugin.doctor.subjects.runtimes.runtime import RuntimeFacts
from gpushare_plugin.doctor.subjects.toolkit import ToolkitFacts
from gpushare_plugin.gpus.cdi.roots import OPERATORS_TOOLKIT

SUBJECT = "NVIDIA's GPU operator"
_VALIDATIONS = "/run/nvidia/validations"
_READY = "-ready"
POD_LOGS = "/var/log/pods"
"""Where the kubelet keeps a directory with the logs of each pod of the node."""
_POD = re.compile(r"_nvidia-(driver-daemonset|gpu-driver|container-toolkit-daemonset|operator-validator)-")
"""What the name of the directory with the logs of a pod of the operator has after the namespace."""
_DRIVER_PODS, _TOOLKIT_PODS = frozenset({"driver-daemonset", "gpu-driver"}), frozenset({"container-toolkit-daemonset"})
_MANAGEMENT = ("/etc/cdi/management.nvidia.com-gpu.*", "/run/cdi/management.nvidia.com-gpu.*")
"""The specification for the operator's own pods."""
_HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
"""The hook of CRI-O, which packages can have, too (NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk-installer)."""


class OperatorFacts(Struct, frozen=True):
    """The traces of NVIDIA's operator."""

    runs: bool | None = False
    """Whether the operator runs pods on this node; None where the node does not show pods."""
    has_driver_pod: bool = False
    """Whether the pod that installs the driver certainly runs on this node."""
    installs_driver: bool = False
    """Whether the operator installs the driver on this node, as far as the node shows that."""
    installs_toolkit: bool = False
    """Whether the operator installs the toolkit on this node, as far as the node shows that."""
    validated: tuple[str, ...] = ()
    """What the operator found ready, such as `driver` and `toolkit`."""
    left: tuple[str, ...] = ()
    """What is left of an operator whose pod for that does not run here any more, paths of the node."""
    program_of_hook: str = ""
    """The program that the hook of CRI-O runs and that is not on the node; empty without such a hook."""

    @property
    def not_ready(self) -> tuple[str, ...]:
        """What an operator that certainly runs installs, and has not found ready."""
        installed = (("driver", self.installs_driver or self.has_driver_pod), ("toolkit", self.installs_toolkit))
        return tuple(name for name, given in installed if self.runs and given and name not in self.validated)


def read_operator(host: HostRoot) -> OperatorFacts:
    """Return the traces of NVIDIA's operator."""
    names = host.names(_VALIDATIONS, f"*{_READY}")
    validated = tuple(name.removesuffix(_READY) for name in names if not name.startswith("."))
    pods = _pods(host)

    def runs(named: frozenset[str]) -> bool:
        """Return whether one of these pods can run here; with validations alone, the kubelet keeps logs elsewhere."""
        return not named.isdisjoint(pods) if pods else pods is None or bool(validated)

    driver = [path for path in (OPERATORS_ROOT,) if host.first(f"{path}/usr", f"{path}/lib")]
    toolkit = [path for path in (OPERATORS_TOOLKIT,) if host.is_directory(path)]
    beside = [path for pattern in _MANAGEMENT for path in host.matching(pattern)]
    if OPERATORS_TOOLKIT in (hook := host.line(_HOOK)):
        beside.append(_HOOK)
    by_driver_pod, by_toolkit_pod = runs(_DRIVER_PODS), runs(_TOOLKIT_PODS)
    return OperatorFacts(
        runs=bool(pods or validated) or (None if pods is None and (driver or toolkit) else False),
        has_driver_pod=bool(pods and not _DRIVER_PODS.isdisjoint(pods)),
        installs_driver=bool(driver) and by_driver_pod,
        installs_toolkit=bool(toolkit) and by_toolkit_pod,
        validated=validated,
        program_of_hook=next(
            (each for each in re.findall(r'"path"\s*:\s*"([^"]+)"', hook) if not host.exists(each)), ""
        ),
        left=(*([] if by_driver_pod else driver), *([] if by_toolkit_pod else [*toolkit, *beside])),
    )


def _pods(host: HostRoot) -> frozenset[str] | None:
    """Return which pods of the operator are on the node; None where the node does not show pods."""
    if not host.is_directory(POD_LOGS):
        return None
    return frozenset(found[1] for name in host.names(POD_LOGS) if (found := _POD.search(name)))


def judge_operator(facts: OperatorFacts, runtime: RuntimeFacts, toolkit: ToolkitFacts) -> Iterator[Diagnosis]:
    """Yield the line about NVIDIA's operator."""
    if facts.program_of_hook and _HOOK in runtime.handlers:
        yield _broken_hook(facts, runtime)
    if facts.not_ready:
        missing = " and ".join(f"{_VALIDATIONS}/{name}{_READY}" for name in facts.not_ready)
        yield wrong(
            SUBJECT,
            f"has not found its {' and '.join(facts.not_ready)} ready ({missing} "
            f"{'are' if len(facts.not_ready) > 1 else 'is'} missing; ready: {', '.join(facts.validated) or 'nothing'})",
            "see `kubectl get pods -n gpu-operator -o wide` for this node, first the pods nvidia-driver-daemonset and "
            "nvidia-container-toolkit-daemonset, and the log of the init container that does not end",
        )
        return
    parts = [part for part, given in (("driver", facts.installs_driver), ("toolkit", facts.installs_toolkit)) if given]
    if facts.runs is False:
        yield right(SUBJECT, f"does not manage this node{_left_over(facts, toolkit)}")
    else:
        way = f"; {_way(runtime, toolkit)}" if facts.installs_toolkit else ""
        found = f"installs {' and '.join(parts) or 'nothing'} on this node{way}"
        yield right(SUBJECT, f"{found}{_left_over(facts, toolkit)}")


def _broken_hook(facts: OperatorFacts, runtime: RuntimeFacts) -> Diagnosis:
    """Return the line about a hook of CRI-O whose program is gone."""
    found = f"{_HOOK} runs {facts.program_of_hook} in every container, which is not on the node, so no pod starts"
    remedy = f"remove {_HOOK} and run {runtime.service}"
    if facts.runs:
        remedy = "see the log of the pod nvidia-container-toolkit-daemonset on this node, which installs this program"
    return wrong(SUBJECT, found, remedy)


def _left_over(facts: OperatorFacts, toolkit: ToolkitFacts) -> str:
    """Return what an operator left that is gone, and what removes or replaces that, in words."""
    if not facts.left:
        return ""
    gone = "of an operator that is gone" if facts.runs is False else "and not installed by the operator any more"
    left = f"; left over {gone}: {', '.join(facts.left)}"
    stays = [path for path in facts.left if not path.startswith("/run/")]
    if toolkit.replaced_by:
        return f"{left}. Its toolkit is still used, and nobody updates that; to replace it, {toolkit.replaced_by}"
    if not stays:
        return f"{left}, until the next boot"
    return f"{left}. `rm -r {' '.join(stays)}` removes that, once no handler and no CDI specification names it"


def _way(runtime: RuntimeFacts, toolkit: ToolkitFacts) -> str:
    """Return how the operator gives GPUs to containers."""
    if not runtime.nvidia:
        return "CDI without a handler in the container runtime, as with cdi.nriPluginEnabled"
    if toolkit.by_specification:
        return "CDI (cdi.enabled, the default from 25.10 on)"
    return "its runtime, without CDI (the default before 25.10)"
