"""The kubelet's checkpoint: the allocated devices, readable even while the kubelet does not answer.

Facts: pkg/kubelet/cm/devicemanager/checkpoint in Kubernetes. The checkpoint has the init containers, which
pod-resources leaves out. The kubelet writes the file at each allocation and each device list. Until the next write, the
file may show pods that have ended.

The form is the same from Kubernetes 1.20 on; kubelets after 1.36 add `BootID` beside `Data`. The checksum is not
checked: a kubelet computes the checksum from Go's own print of the data, and the file is replaced as a whole. A kubelet
that finds another checksum starts without the file, while the recorded containers go on running with their devices.
"""

import binascii
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.base.text import in_words
from gpushare_plugin.core.holding import Holding, Holdings
from gpushare_plugin.kubelet.api.deviceplugin_pb2 import ContainerAllocateResponse

T = TypeVar("T")

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


class _Answered(Struct, frozen=True, gc=False):
    """The answer of a device plugin for one resource of one container."""

    answer: Any = field(name="AllocResp", default="")
    """The `ContainerAllocateResponse` in base64."""
    uid: str = field(name="PodUID", default="")
    container: str = field(name="ContainerName", default="")


class _Answers(Struct, frozen=True, gc=False):
    entries: list[_Answered] | None = field(name="PodDeviceEntries")


class _FileOfAnswers(Struct, frozen=True, gc=False):
    data: _Answers = field(name="Data")


class _Data(Struct, frozen=True, gc=False):
    entries: list[_Recorded] | None = field(name="PodDeviceEntries")
    listed: dict[str, list[str] | None] | None = field(name="RegisteredDevices", default=None)


class _File(Struct, frozen=True, gc=False):
    data: _Data = field(name="Data")


_DECODER = msgspec.json.Decoder(_File)
_ANSWERS_DECODER = msgspec.json.Decoder(_FileOfAnswers)

Granted = Mapping[str, Mapping[str, Mapping[str, str]]]
"""The environment variables that device plugins gave to containers, by the UID of the pod and the container."""


def read_recorded(directory: Path) -> Holdings:
    """Return the possible holdings of containers, with the UIDs of their pods; none before a kubelet's first write.

    `directory` is the kubelet's plugin directory. Raises CheckpointError, also if the directory is missing.
    """
    return tuple(
        Holding("", "", each.container, each.resource, frozenset(_every(each.ids)), each.uid)
        for each in _read(directory).entries or ()
    )


def read_granted(directory: Path, wanted: Callable[[str], bool]) -> Granted:
    """Return the environment variables that containers were given, only those with a `wanted` name.

    The kubelet records the answers of all device plugins when it allocates, and gives a container that it starts again
    the recorded variables. So the record also has what a container was given under an earlier config. An answer that
    cannot be read is left out. Takes the same directory and raises the same error as `read_recorded`.
    """
    found: defaultdict[str, defaultdict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for each in _decoded(directory, _ANSWERS_DECODER, _FileOfAnswers(_Answers(None))).data.entries or ():
        try:
            envs = ContainerAllocateResponse.FromString(binascii.a2b_base64(each.answer)).envs
        except (binascii.Error, DecodeError, ValueError, TypeError):
            continue
        if variables := {name: value for name, value in envs.items() if wanted(name)}:
            found[each.uid][each.container] |= variables
    return found


def read_listed(directory: Path) -> frozenset[tuple[str, str]]:
    """Return the devices listed as healthy at the kubelet's last write, as resource and ID.

    Takes the same directory and raises the same error as `read_recorded`. An allocated device can be missing from the
    holdings until the kubelet's next write. The next write adds the device to the holdings, and drops the listed
    devices of a plugin that has ended.
    """
    by_resource = _read(directory).listed or {}
    return frozenset((resource, id_) for resource, ids in by_resource.items() for id_ in ids or ())


def _read(directory: Path) -> _Data:
    return _decoded(directory, _DECODER, _File(_Data(None))).data


def _decoded(directory: Path, decoder: msgspec.json.Decoder[T], nothing: T) -> T:
    """Return the content of the checkpoint, `nothing` before a kubelet's first write; raises CheckpointError."""
    path = directory / CHECKPOINT
    try:
        return decoder.decode(_content(path))
    except FileNotFoundError as error:
        if directory.is_dir():
            return nothing
        raise CheckpointError(f"{directory} does not exist; is the kubelet's plugin directory mounted here?") from error
    except OSError as error:
        raise _unreadable(path, error.strerror or in_words(error)) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, in_words(error)) from error


def _unreadable(path: Path, found: str) -> CheckpointError:
    return CheckpointError(f"{path} does not show what pods hold, since it is no checkpoint of the kubelet: {found}")


def _every(ids: dict[str, list[str] | None] | None) -> Iterable[str]:
    return (id_ for of_node in (ids or {}).values() for id_ in of_node or ())


def _content(path: Path) -> bytes:
    content = read_regular(path, LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError(f"more than {LARGEST_FILE} bytes")
    return content
