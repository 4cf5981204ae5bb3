"""The kubelet's checkpoint: which devices it has allocated, readable before the kubelet answers and when it does not.

Facts: pkg/kubelet/cm/devicemanager/checkpoint in Kubernetes. Init containers, which pod-resources leaves out, are in
it. The file is written at each allocation and each device list, so for a while it may show pods that have ended.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.files.regular_file import read_regular
from gpushare_plugin.foundation.text import in_words

CHECKPOINT = "kubelet_internal_checkpoint"
LARGEST_FILE = 32 << 20
"""Bytes; eight resources with lists as long as the kubelet takes, 4 MiB each, and every unit allocated."""

_Parsed = TypeVar("_Parsed")


class CheckpointError(GpushareError):
    """The kubelet's checkpoint is there and cannot be read."""


class Entry(NamedTuple):
    """Devices of one resource that a container has; the pod is known by its UID."""

    uid: str
    container: str
    resource: str
    ids: frozenset[str]


def read_held(directory: Path) -> frozenset[tuple[str, str]]:
    """Return what containers may hold, as resource and device ID; nothing where no kubelet wrote yet.

    `directory` is the kubelet's plugin directory. Raises CheckpointError, also where the directory is missing.
    """
    return frozenset((entry.resource, id_) for entry in read_entries(directory) for id_ in entry.ids)


def read_entries(directory: Path) -> tuple[Entry, ...]:
    """Return what each container may hold; otherwise as `read_held`."""
    return _read(directory, lambda data: tuple(map(_entry, data["PodDeviceEntries"] or ())), ())


def read_listed(directory: Path) -> frozenset[tuple[str, str]]:
    """Return what plugins listed as healthy when the kubelet wrote last, as resource and ID; otherwise as `read_held`.

    What is allocated of it can be missing among what containers hold until the kubelet writes the next time: then it
    is there, whereas what a plugin that has ended had listed is here no longer.
    """

    def listed(data: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
        by_resource = data.get("RegisteredDevices") or {}
        return frozenset((str(resource), str(id_)) for resource, ids in by_resource.items() for id_ in ids or ())

    return _read(directory, listed, frozenset())


def _read(directory: Path, parse: Callable[[Mapping[str, Any]], _Parsed], nothing: _Parsed) -> _Parsed:
    path = directory / CHECKPOINT
    try:
        return parse(json.loads(_content(path))["Data"])
    except FileNotFoundError as error:
        if directory.is_dir():
            return nothing
        raise CheckpointError(f"{directory} does not exist; is the kubelet's plugin directory mounted here?") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} does not show what pods hold: {in_words(error)} found, the kubelet's checkpoint expected"
        ) from error


def _entry(found: Mapping[str, Any]) -> Entry:
    ids = frozenset(id_ for of_node in (found["DeviceIDs"] or {}).values() for id_ in of_node or ())
    # Who holds the devices matters less than that they are held.
    return Entry(str(found.get("PodUID")), str(found.get("ContainerName")), str(found["ResourceName"]), ids)


def _content(path: Path) -> bytes:
    content = read_regular(path, LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError(f"more than {LARGEST_FILE} bytes")
    return content
