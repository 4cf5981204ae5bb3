"""The paths of a kubelet's sockets by default."""

from pathlib import Path

DEFAULT_PLUGIN_DIRECTORY = Path("/var/lib/kubelet/device-plugins")
"""The plugin directory, with the sockets of the kubelet and of its device plugins."""
DEFAULT_POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
"""The socket of the pod-resources API."""
