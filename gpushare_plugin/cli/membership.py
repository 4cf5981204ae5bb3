"""The decision whether and how a command of a node joins the cluster."""

import os
from pathlib import Path

import structlog

from gpushare_plugin.node.daemon import Membership

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""The token of a pod's service account."""


def cluster_membership(  # noqa: PLR0913 - the settings of a membership
    node_name: str | None,
    kubeconfig: Path | None,
    *,
    node_labels: bool,
    cordon_configmap: bool = True,
    follow_pods: bool = False,
    events: bool = False,
) -> Membership | None:
    """Return the membership in the cluster, None without the Node's name or a way to the API server."""
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and SERVICE_ACCOUNT_TOKEN.exists()
    if not node_name or not (kubeconfig or in_pod):
        reason = "no kubeconfig and no service account" if node_name else "no --node-name"
        structlog.get_logger().info("api_server_not_used", reason=reason, node=node_name)
        return None
    return Membership(node_name, kubeconfig, node_labels, cordon_configmap, follow_pods, events)
