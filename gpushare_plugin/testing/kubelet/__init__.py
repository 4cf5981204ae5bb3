"""A kubelet to embed in tests and demonstrations: its device manager and its DRA manager over real Unix sockets.

What the DRA manager needs is in `dra_manager`, which imports the client of the API server.
"""

from gpushare_plugin.testing.kubelet.device_manager.manager import Device
from gpushare_plugin.testing.kubelet.embedded import EmbeddedKubelet
from gpushare_plugin.testing.kubelet.shared.errors import (
    AdmissionError,
    ContainerStartError,
    KubeletCrashError,
    PrepareError,
    UnprepareError,
)
from gpushare_plugin.testing.kubelet.shared.journal import Disconnection, DriverRegistration, Registration
from gpushare_plugin.testing.kubelet.shared.pods import (
    AdmittedPod,
    ClaimEntry,
    Container,
    DeviceNode,
    Mount,
    Pod,
    StartedContainer,
)

__all__ = [
    "AdmissionError",
    "AdmittedPod",
    "ClaimEntry",
    "Container",
    "ContainerStartError",
    "Device",
    "DeviceNode",
    "Disconnection",
    "DriverRegistration",
    "EmbeddedKubelet",
    "KubeletCrashError",
    "Mount",
    "Pod",
    "PrepareError",
    "Registration",
    "StartedContainer",
    "UnprepareError",
]
