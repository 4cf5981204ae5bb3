"""The paths of a kubelet's sockets by default, and the files about claims that gpushare keeps there."""

from pathlib import Path

DEFAULT_PLUGIN_DIRECTORY = Path("/var/lib/kubelet/device-plugins")
"""The plugin directory, with the sockets of the kubelet and of its device plugins."""
DEFAULT_POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
"""The socket of the pod-resources API."""
GIVEN_BY_CLAIM = "gpushare-given.json"
"""The file that names the GPUs that belong to claims of a DRA driver."""
GIVEN_COPIES = "gpushare-given"
"""The directory, in the plugin directory, with a directory of each DRA driver for a copy of that file.

Every daemon has the plugin directory, a daemon without a DRA driver, too. A kubelet that starts removes files of the
plugin directory, but no directory: `CleanupPluginDirectory` in kubernetes, pkg/kubelet/cm/devicemanager/manager.go.
"""
GIVEN_VERSION = 1
"""The version of the meaning of that file."""
CLAIM_RECORDS = "claims"
"""The directory, in that of a DRA driver, with a record of each prepared claim."""
RECORD_VERSION = 1
"""The version of the meaning of a record."""
LARGEST_CLAIM_FILE = 1 << 18
"""The size limit in bytes of each of these files; a claim has at most 32 devices."""
