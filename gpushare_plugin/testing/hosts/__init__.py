"""Nodes described as folders: the files, links and sockets by which programs know a node, below any directory.

with built(KUBEADM_CONTAINERD_2, folder): subprocess.run(["gpushare", "doctor", "--root", str(folder)])
"""

from gpushare_plugin.testing.hosts.description import HostDescription, built
from gpushare_plugin.testing.hosts.nodes import (
    BARE,
    DRIVER,
    DRIVER_LIMITS,
    DRIVER_LIMITS_OLD_TOOLKIT,
    GPUS,
    K3S,
    KUBEADM_CONTAINERD_1_7,
    KUBEADM_CONTAINERD_2,
    NODES,
    OPERATOR_24,
    OPERATOR_25_10,
    OPERATOR_NRI,
    WITHOUT_GPU,
    specification,
    without_operator,
)

__all__ = [
    "BARE",
    "DRIVER",
    "DRIVER_LIMITS",
    "DRIVER_LIMITS_OLD_TOOLKIT",
    "GPUS",
    "K3S",
    "KUBEADM_CONTAINERD_1_7",
    "KUBEADM_CONTAINERD_2",
    "NODES",
    "OPERATOR_24",
    "OPERATOR_25_10",
    "OPERATOR_NRI",
    "WITHOUT_GPU",
    "HostDescription",
    "built",
    "specification",
    "without_operator",
]
