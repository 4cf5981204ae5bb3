"""A kubelet to embed in tests and demonstrations: its device manager over real Unix sockets, nothing else of it."""

from gpushare_plugin.testing.kubelet.device_manager.manager import Device
from gpushare_plugin.testing.kubelet.embedded import EmbeddedKubelet
from gpushare_plugin.testing.kubelet.errors import AdmissionError, ContainerStartError, KubeletCrashError
from gpushare_plugin.testing.kubelet.journal import Disconnection, Registration
from gpushare_plugin.testing.kubelet.pods import (
    AdmittedPod,
    Container,
    DeviceNode,
    Mount,
    Pod,
    StartedContainer,
)

__all__ = [
    "AdmissionError",
    "AdmittedPod",
    "Container",
    "ContainerStartError",
    "Device",
    "DeviceNode",
    "Disconnection",
    "EmbeddedKubelet",
    "KubeletCrashError",
    "Mount",
    "Pod",
    "Registration",
    "StartedContainer",
]
