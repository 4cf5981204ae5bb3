"""Where a kubelet has its sockets, unless it is configured otherwise."""

from pathlib import Path

DEFAULT_PLUGIN_DIRECTORY = Path("/var/lib/kubelet/device-plugins")
DEFAULT_POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
