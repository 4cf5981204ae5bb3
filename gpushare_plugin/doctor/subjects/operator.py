"""NVIDIA's GPU operator, by its traces on the node.

Facts, of NVIDIA/gpu-operator: its validator writes `/run/nvidia/validations/<what>-ready` (in assets,
state-container-toolkit and gpu-feature-discovery wait for `driver-ready` and `toolkit-ready`);
`hostPaths.driverInstallDir` and `toolkit.installDir` (deployments/gpu-operator/values.yaml). From 25.10 on
`cdi.enabled` is true, so its runtime has mode `cdi` and is not the default one; with `cdi.nriPluginEnabled` the
configuration of the container runtime has no handler at all (controllers/object_controls.go).
"""

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


class OperatorFacts(Struct, frozen=True):
    """The traces of NVIDIA's operator."""

    installs_driver: bool
    """Whether the operator installs the driver on this node."""
    installs_toolkit: bool
    """Whether the operator installs the toolkit on this node."""
    validated: tuple[str, ...]
    """What the operator found ready, such as `driver` and `toolkit`."""

    @property
    def is_there(self) -> bool:
        """Whether the operator manages this node."""
        return self.installs_driver or self.installs_toolkit or bool(self.validated)


def read_operator(host: HostRoot) -> OperatorFacts:
    """Return the traces of NVIDIA's operator."""
    ready = host.names(_VALIDATIONS, f"*{_READY}")
    return OperatorFacts(
        bool(host.first(f"{OPERATORS_ROOT}/usr", f"{OPERATORS_ROOT}/lib")),
        host.is_directory(OPERATORS_TOOLKIT),
        tuple(name.removesuffix(_READY) for name in ready if not name.startswith(".")),
    )


def judge_operator(facts: OperatorFacts, runtime: RuntimeFacts, toolkit: ToolkitFacts) -> Iterator[Diagnosis]:
    """Yield the line about NVIDIA's operator."""
    if not facts.is_there:
        yield right(SUBJECT, "does not manage this node")
    elif facts.validated and toolkit.directory == OPERATORS_TOOLKIT and "toolkit" not in facts.validated:
        # Without any validation, the toolkit can be left of an operator that is gone.
        yield wrong(
            SUBJECT,
            f"has not found its toolkit ready ({_VALIDATIONS}/toolkit{_READY} is missing; ready: "
            f"{', '.join(facts.validated)})",
            "see `kubectl get pods -n gpu-operator -o wide` for this node, first the pods nvidia-driver-daemonset and "
            "nvidia-container-toolkit-daemonset, and the log of the init container that does not end",
        )
    else:
        parts = [
            part for part, given in (("driver", facts.installs_driver), ("toolkit", facts.installs_toolkit)) if given
        ]
        yield right(SUBJECT, f"installs {' and '.join(parts) or 'nothing'} on this node; {_way(runtime, toolkit)}")


def _way(runtime: RuntimeFacts, toolkit: ToolkitFacts) -> str:
    """Return how the operator gives GPUs to containers."""
    if not runtime.nvidia:
        return "CDI without a handler in the container runtime, as with cdi.nriPluginEnabled"
    if toolkit.by_specification:
        return "CDI (cdi.enabled, the default from 25.10 on)"
    return "its runtime, without CDI (the default before 25.10)"
