"""What the kubelet remembers on disk of who holds what: there before the kubelet answers, and when it does not.

Facts: pkg/kubelet/cm/devicemanager/checkpoint in Kubernetes. The file names no pod that we know and keeps pods for a
while that have ended, so it shows what may be held, never what is free.
"""

import json
from pathlib import Path

from gpushare_plugin.errors import GpushareError

CHECKPOINT = "kubelet_internal_checkpoint"


class CheckpointError(GpushareError):
    """The kubelet's checkpoint is there and cannot be understood."""


def read_held(directory: Path) -> frozenset[tuple[str, str]]:
    """Return what containers may hold, as resource and device ID; nothing where no kubelet wrote yet.

    `directory` is the kubelet's plugin directory. Raises CheckpointError.
    """
    path = directory / CHECKPOINT
    try:
        entries = json.loads(path.read_bytes())["Data"]["PodDeviceEntries"] or ()
        return frozenset(
            (str(entry["ResourceName"]), str(id_))
            for entry in entries
            for ids in (entry["DeviceIDs"] or {}).values()  # by NUMA node
            for id_ in ids or ()
        )
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} does not tell what pods hold: {error!r} found, the kubelet's record of devices expected"
        ) from error
