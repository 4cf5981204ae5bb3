"""The kubelet's checkpoint: which devices it has allocated, readable before the kubelet answers and when it does not.

Facts: pkg/kubelet/cm/devicemanager/checkpoint in Kubernetes. Init containers, which pod-resources leaves out, are in
it. The file is written at each allocation and each device list, so for a while it may show pods that have ended.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.files.regular_file import read_regular
from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.foundation.text import in_words
from gpushare_plugin.model.holding import Holding, Holdings

CHECKPOINT = "kubelet_internal_checkpoint"
LARGEST_FILE = 32 << 20
"""Bytes; eight resources with lists as long as the kubelet takes, 4 MiB each, and every unit allocated."""


class CheckpointError(GpushareError):
    """The kubelet's checkpoint is there and cannot be read."""


class _Recorded(Struct, frozen=True, gc=False):
    """Devices of one resource that a container has, as the file has them: by NUMA node."""

    resource: str = field(name="ResourceName")
    ids: dict[str, list[str] | None] | None = field(name="DeviceIDs")
    # Who holds the devices matters less than that they are held.
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
    """Return what containers may hold, each with the UID of its pod; nothing where no kubelet wrote yet.

    `directory` is the kubelet's plugin directory. Raises CheckpointError, also where the directory is missing.
    """
    return tuple(
        Holding("", "", each.container, each.resource, frozenset(_every(each.ids)), each.uid)
        for each in _read(directory).entries or ()
    )


def read_listed(directory: Path) -> frozenset[tuple[str, str]]:
    """Return what plugins listed as healthy when the kubelet wrote last, as resource and ID; as `read_recorded`.

    What is allocated of it can be missing among what containers hold until the kubelet writes the next time: then it
    is there, whereas what a plugin that has ended had listed is here no longer.
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
