"""The DRA manager of the kubelet: which DRA drivers there are, and which claims they prepared for pods.

Read from Kubernetes 1.36: `pkg/kubelet/cm/dra`, and `pkg/kubelet/pluginmanager` for the registration.
"""

from gpushare_plugin.testing.kubelet.dra_manager.claims import PreparedDevice
from gpushare_plugin.testing.kubelet.dra_manager.dra import Dra
from gpushare_plugin.testing.kubelet.dra_manager.node_api import NodeApi

__all__ = ["Dra", "NodeApi", "PreparedDevice"]
