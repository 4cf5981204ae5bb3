"""The files about claims that gpushare keeps in the directories of a kubelet, and the version of each file."""

import msgspec

from gpushare_plugin.base.structs import Struct

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


class _Versioned(Struct):
    version: int = 1


def version_of(content: bytes) -> int:
    """Return the version of the meaning that a file about claims names; raises ValueError for any other content."""
    try:
        return msgspec.json.decode(content, type=_Versioned).version
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
