"""The kubelet's checkpoint: the allocated devices, readable even while the kubelet does not answer.

Facts: pkg/kubelet/cm/devicemanager/checkpoint in Kubernetes. The checkpoint has the init containers, which
pod-resources leaves out. The kubelet writes the file at each allocation and each device list. Until the next write, the
file may show pods that have ended.

The form is the same from Kubernetes 1.20 on; kubelets after 1.36 add `BootID` beside `Data`. The checksum is not
checked: a kubelet computes the checksum from Go's own print of the data, and the file is replaced as a whole. A kubelet
that finds another checksum starts without the file, while the recorded containers go on running with their devices.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.base.text import in_words
from gpushare_plugin.core.holding import Holding, Holdings

CHECKPOINT = "kubelet_internal_checkpoint"
"""The name of the file in the plugin directory."""
LARGEST_FILE = 32 << 20
"""Bytes; enough for eight resources with the longest lists that the kubelet takes, 4 MiB each, all units allocated."""


class CheckpointError(GpushareError):
    """The kubelet's checkpoint cannot be read, or the plugin directory is missing."""


class _Recorded(Struct, frozen=True, gc=False):
    """The devices of one resource allocated to one container."""

    resource: str = field(name="ResourceName")
    ids: dict[str, list[str] | None] | None = field(name="DeviceIDs")
    """Device IDs by NUMA node."""
    # Optional: a device without a known holder is held all the same.
    uid: str = field(name="PodUID", default="")
    container: str = field(name="ContainerName", default="")


class _Data(Struct, frozen=True, gc=False):
    entries: list[_Recorded] | None = field(name="PodDeviceEntries")
    listed: dict[str, list[str] | None] | None = field(name="RegisteredDevices", default=None)


class _File(Struct, frozen=True, gc=False):
    data: _Data = field(name="Data")


_DECODER = msgspec.json.Decoder(_File)
_NOTHING = _Data(entries=None)


def read_recorded(directory: Path) -> Holdings:
    """Return the possible holdings of containers, with the UIDs of their pods; none before a kubelet's first write.

    `directory` is the kubelet's plugin directory. Raises CheckpointError, also if the directory is missing.
    """
    return tuple(
        Holding("", "", each.container, each.resource, frozenset(_every(each.ids)), each.uid)
        for each in _read(directory).entries or ()
    )


def read_listed(directory: Path) -> frozenset[tuple[str, str]]:
    """Return the devices listed as healthy at the kubelet's last write, as resource and ID.

    Takes the same directory and raises the same error as `read_recorded`. An allocated device can be missing from the
    holdings until the kubelet's next write. The next write adds the device to the holdings, and drops the listed
    devices of a plugin that has ended.
    """
    by_resource = _read(directory).listed or {}
    return frozenset((resource, id_) for resource, ids in by_resource.items() for id_ in ids or ())


def _read(directory: Path) -> _Data:
    path = directory / CHECKPOINT
    try:
        return _DECODER.decode(_content(path)).data
    except FileNotFoundError as error:
        if directory.is_dir():
            return _NOTHING
        raise CheckpointError(f"{directory} does not exist; is the kubelet's plugin directory mounted here?") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} does not show what pods hold: {in_words(error)} found, the kubelet's checkpoint expected"
        ) from error


def _every(ids: dict[str, list[str] | None] | None) -> Iterable[str]:
    return (id_ for of_node in (ids or {}).values() for id_ in of_node or ())


def _content(path: Path) -> bytes:
    content = read_regular(path, LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError(f"more than {LARGEST_FILE} bytes")
    return content
