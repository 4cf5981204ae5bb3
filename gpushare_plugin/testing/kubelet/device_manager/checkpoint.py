"""The file in which the kubelet remembers, over its own restarts, which container was given which devices."""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from gpushare_plugin.kubelet.api.deviceplugin_pb2 import ContainerAllocateResponse
from gpushare_plugin.testing.kubelet.device_manager.allocations import Allocation, Entry
from gpushare_plugin.testing.kubelet.shared.errors import DeviceManagerError

NAME = "kubelet_internal_checkpoint"


class CheckpointError(DeviceManagerError):
    """The checkpoint cannot be written, or is there but cannot be used."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The allocations of the node, and the healthy IDs of each registered resource."""

    entries: tuple[Entry, ...]
    registered: Mapping[str, Iterable[str]]


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file at `path` in one step, so that a reader never sees half; raises CheckpointError if it cannot."""
    data = {
        "PodDeviceEntries": [_encoded(entry) for entry in checkpoint.entries],
        "RegisteredDevices": {resource: sorted(ids) for resource, ids in checkpoint.registered.items()},
    }
    unfinished = path.with_name(f".{path.name}")
    try:
        unfinished.write_text(json.dumps({"Data": data, "Checksum": _checksum(data)}), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise CheckpointError(f'failed to write checkpoint file "{path.name}": {error}') from error


def read(path: Path) -> Checkpoint:
    """Read the file at `path`; an absent one is a node without a past. Raises CheckpointError on a damaged one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        data = content["Data"]
        if content["Checksum"] != _checksum(data):
            raise CheckpointError(f"{path}: the checksum does not fit the content; remove the file to start without")
        return Checkpoint(tuple(map(_decoded, data["PodDeviceEntries"])), data["RegisteredDevices"])
    except FileNotFoundError:
        return Checkpoint((), {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
        raise CheckpointError(f"{path} is not a checkpoint: {error!r}; remove the file to start without") from error


def _checksum(data: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())


def _encoded(entry: Entry) -> dict[str, Any]:
    return {
        "PodUID": entry.pod_uid,
        "ContainerName": entry.container,
        "ResourceName": entry.resource,
        "DeviceIDs": {str(node): ids for node, ids in entry.allocation.ids_by_numa.items()},
        "AllocResp": base64.b64encode(entry.allocation.response.SerializeToString()).decode(),
    }


def _decoded(content: Mapping[str, Any]) -> Entry:
    response = ContainerAllocateResponse.FromString(base64.b64decode(content["AllocResp"]))
    by_numa = {int(node): tuple(ids) for node, ids in content["DeviceIDs"].items()}
    return Entry(content["PodUID"], content["ContainerName"], content["ResourceName"], Allocation(by_numa, response))
