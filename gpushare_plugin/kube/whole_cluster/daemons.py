"""The pods of gpushare's daemons on nodes, as the chart makes them."""

from collections.abc import Iterable, Mapping

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.ledger.pod import FINAL_PHASES

_COMPONENT = "app.kubernetes.io/component"
"""The label that names the program of a pod: one of Kubernetes' recommended labels."""
_DAEMON = "node-daemon"
_PORT = "http"
"""The name of the port for probes and metrics (charts/gpushare/templates/daemonset.yaml)."""


class DaemonPod(Struct, frozen=True):
    """The pod of a daemon, which serves metrics."""

    namespace: str
    """The namespace."""
    name: str
    """The name."""
    node: str
    """The node of the daemon."""
    address: str
    """The IP address of the pod."""
    port: int
    """The port for probes and metrics."""
    created: str
    """The time of creation, as Kubernetes writes times: later times sort later."""


def daemon_pod(found: ApiPod) -> DaemonPod | None:
    """Return the daemon that a pod is; None for another pod, and for one that does not run, ends, or has no port.

    Anybody who may create pods can give a pod these labels: whoever asks must choose the namespace.
    """
    about, node, address = found.metadata, found.spec.node_name, found.status.pod_ip
    if about.labels.get(_COMPONENT) != _DAEMON or about.deletion_timestamp is not None or not (node and address):
        return None
    ports = (port for container in found.spec.containers for port in container.ports)
    number = next((port.container_port for port in ports if port.name == _PORT), 0)
    if not number or found.status.phase in FINAL_PHASES:
        return None
    return DaemonPod(about.namespace, about.name, node, address, number, about.creation_timestamp or "")


def by_node(daemons: Iterable[DaemonPod], namespace: str) -> Mapping[str, DaemonPod]:
    """Return the daemons of a namespace by their node; of several on a node, the newest, which takes over."""
    several = (each for each in daemons if each.namespace == namespace)
    return {each.node: each for each in sorted(several, key=lambda each: each.created)}
