"""Divides cards into MIG instances through NVML.

Facts: nvml.h of the CUDA toolkit, "Multi Instance GPU Management"; NVIDIA's "MIG User Guide", Getting Started. The
driver defines profiles and placements; profiles are spelled as in `mig`. UUIDs of MIG instances are of version 5, which
is derived from names: an instance created again at the same place can have the same UUID.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pynvml

from gpushare_plugin.base.errors import DriverChangedError, NoGpuLibraryError
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.gpus.mig_driver import MigCard, MigError, MigPart
from gpushare_plugin.gpus.nvml.initialisation import PROCFS, SYSFS, refuse_mismatch
from gpushare_plugin.gpus.nvml.library import NvmlLibrary
from gpushare_plugin.gpus.nvml.memory import read_memory
from gpushare_plugin.gpus.nvml.mig import ATTRIBUTES, gigabytes
from gpushare_plugin.gpus.nvml.usage import users_of
from gpushare_plugin.gpus.nvml_answers import card_uuid, instance_uuid, why
from gpushare_plugin.slices.mig import MigProfile
from gpushare_plugin.slices.slice import MigPlace

_PLAIN = (0x0, 0x1, 0x2, 0x3, 0x4, 0x5, 0x6, 0x9)
"""NVML_GPU_INSTANCE_PROFILE_… of the profiles without a suffix."""
_LEAST_ROOM = 8
"""The least length of a list that the driver fills without knowing the length: no card has more instances."""
_ABSENT = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_FunctionNotFound)
_RIGHTS = (
    "gpushare mig needs root, the capability SYS_ADMIN and, in a container, NVIDIA_MIG_CONFIG_DEVICES=all: the chart "
    "sets them with partitioning.mig.enabled"
)
_RESET = (
    "the driver takes the MIG mode only with a reset of the GPU: reset it (nvidia-smi --gpu-reset) while nothing uses "
    "it, or reboot the node"
)

Handle = Any
"""An opaque pointer of NVML."""


class NvmlPartitions:
    """Divides the cards of the node into MIG instances."""

    def __init__(self, driver_root: Path, sysfs: Path = SYSFS, procfs: Path = PROCFS) -> None:
        """Look for the library below `driver_root` first; read the kernel's list of cards from `sysfs` and `procfs`."""
        self._library = NvmlLibrary(driver_root, sysfs, procfs)

    def cards(self) -> tuple[str, ...]:
        """Return the UUIDs of the MIG-capable cards; a card that does not answer is left out."""
        self._open()
        found = []
        with _said("the GPUs cannot be listed"):
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(pynvml.NVMLError, ValueError):
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    pynvml.nvmlDeviceGetMigMode(handle)
                    found.append(card_uuid(pynvml.nvmlDeviceGetUUID(handle)))
        return tuple(found)

    def read(self, uuid: str) -> MigCard:
        """Return the GPU instances and the profiles of a card."""
        with _said(f"how {uuid} is divided cannot be read"):
            handle = self._handle(uuid)
            current, pending = map(bool, pynvml.nvmlDeviceGetMigMode(handle))
            # Only newer versions of nvml.h promise placements without MIG mode, and a card without MIG mode needs none.
            kinds = _kinds(handle) if current else {}
            profiles = tuple(_profile(handle, name, info) for name, info in kinds.items())
            parts = tuple(_parts(handle, kinds)) if current else ()
            users = tuple(sorted(users_of(handle).memory))
        return MigCard(uuid, current, pending, profiles, parts, users)

    def create(self, uuid: str, place: MigPlace) -> None:
        """Create a GPU instance at `place`, and a compute instance with all compute slices of the GPU instance."""
        with _said(f"MIG instance {place} of {uuid} cannot be created"):
            handle = self._handle(uuid)
            if (info := _kinds(handle).get(place.profile)) is None:
                raise MigError(f"{uuid} has no MIG profile {place.profile}: it has {', '.join(_kinds(handle))}")
            sizes = {start: size for start, size in _placements(handle, info.id) if start == place.start}
            if not sizes:
                starts = sorted(start for start, _ in _placements(handle, info.id))
                raise MigError(f"{place} cannot be on {uuid}: {place.profile} can start at {_listed(starts)}")
            where = pynvml.c_nvmlGpuInstancePlacement_t(place.start, sizes[place.start])
            made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, info.id, pynvml.byref(where))
            _create_compute(made, info.sliceCount)

    def complete(self, uuid: str, number: int) -> None:
        """Create the missing compute instance of a GPU instance."""
        with _said(f"GPU instance {number} of {uuid} cannot be completed"):
            handle = self._handle(uuid)
            part = pynvml.nvmlDeviceGetGpuInstanceById(handle, number)
            kind = pynvml.nvmlGpuInstanceGetInfo(part).profileId
            slices = next(info.sliceCount for info in _kinds(handle).values() if info.id == kind)
            _create_compute(part, slices)

    def destroy(self, uuid: str, number: int) -> None:
        """Destroy a GPU instance and its compute instances; the driver refuses while a program uses the instances."""
        with _said(f"GPU instance {number} of {uuid} cannot be destroyed"):
            part = pynvml.nvmlDeviceGetGpuInstanceById(self._handle(uuid), number)
            for compute in _computes(part):
                pynvml.nvmlComputeInstanceDestroy(compute)
            pynvml.nvmlGpuInstanceDestroy(part)

    def set_mode(self, uuid: str, *, enabled: bool) -> None:
        """Switch MIG mode on or off; the driver resets the card if possible, which may change the minor number."""
        what = f"MIG mode of {uuid} cannot be switched {'on' if enabled else 'off'}"
        with _said(what):
            activation = pynvml.nvmlDeviceSetMigMode(self._handle(uuid), int(enabled))
            if activation == pynvml.NVML_ERROR_RESET_REQUIRED:
                raise MigError(f"{what} now: {_RESET}")
            if activation == pynvml.NVML_ERROR_IN_USE:
                raise MigError(
                    f"{what} now: another program has the GPU open, such as DCGM or a monitor. Stop it; or else "
                    f"{_RESET}"
                )
            if activation != pynvml.NVML_SUCCESS:
                raise pynvml.NVMLError(activation)

    def _open(self) -> None:
        try:
            self._library.open()
        except DriverChangedError:
            raise
        except NoGpuLibraryError as error:
            raise MigError(str(error)) from error

    def _handle(self, uuid: str) -> Handle:
        self._open()
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Turn an error of NVML into a MigError that begins with `what`, or into a DriverChangedError."""
    try:
        yield
    except pynvml.NVMLError_InUse as error:
        raise MigError(f"{what}: {error}. It is tried again when that has ended") from error
    except pynvml.NVMLError_NoPermission as error:
        raise MigError(f"{what}: {error}. {_RIGHTS}") from error
    except pynvml.NVMLError_InsufficientResources as error:
        raise MigError(f"{what}: {error}. Other instances have its memory slices; see nvidia-smi mig -lgi") from error
    except (pynvml.NVMLError, ValueError) as error:
        refuse_mismatch(error)
        raise MigError(f"{what}: {why(error)}") from error


def _kinds(handle: Handle) -> dict[str, Any]:
    """Return the driver's description of every profile of a card, by the profile's name."""
    memory = read_memory(handle)
    total = memory.total // MIB if memory else 0
    found: dict[str, Any] = {}
    for number in sorted({*_PLAIN, *ATTRIBUTES}):
        # A card has only some of the profiles, and an older driver does not know every profile.
        with suppress(*_ABSENT):
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=1)
            gib = gigabytes(int(info.memorySizeMB), total)
            found.setdefault(f"{info.sliceCount}g.{gib}gb{ATTRIBUTES.get(number, '')}", info)
    return found


def _profile(handle: Handle, name: str, info: Any) -> MigProfile:
    places = sorted(_placements(handle, info.id))
    return MigProfile(
        name=name,
        starts=tuple(start for start, _ in places),
        size=places[0][1] if places else 0,
        compute=info.sliceCount,
        most=info.instanceCount,
        memory_mib=int(info.memorySizeMB),
    )


def _placements(handle: Handle, kind: int) -> list[tuple[int, int]]:
    """Return all placements of a profile, free or not, as start and size."""
    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    count = pynvml.c_uint(0)
    ask(handle, kind, None, pynvml.byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    ask(handle, kind, found, pynvml.byref(count))
    return [(int(each.start), int(each.size)) for each in found[: count.value]]


def _parts(handle: Handle, kinds: dict[str, Any]) -> Iterator[MigPart]:
    instances = _instances(handle)
    for name, info in kinds.items():
        listed = _listed_by(pynvml.nvmlDeviceGetGpuInstances, pynvml.c_nvmlGpuInstance_t, handle, info)
        for part in listed:
            told = pynvml.nvmlGpuInstanceGetInfo(part)
            mine = [(uuid, users) for (owner, uuid, users) in instances if owner == told.id]
            yield MigPart(
                number=int(told.id),
                place=MigPlace(name, int(told.placement.start)),
                size=int(told.placement.size),
                uuids=tuple(uuid for uuid, _ in mine),
                users=tuple(sorted({user for _, users in mine for user in users})),
            )


def _instances(handle: Handle) -> list[tuple[int, str, tuple[int, ...]]]:
    """Return the MIG instances of a card: the ID of the GPU instance, the UUID, and the IDs of the processes."""
    found = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue  # the numbers may have gaps
        owner = int(pynvml.nvmlDeviceGetGpuInstanceId(mig))
        found.append((owner, instance_uuid(pynvml.nvmlDeviceGetUUID(mig)), tuple(users_of(mig).memory)))
    return found


def _create_compute(part: Handle, slices: int) -> None:
    """Create a compute instance with all compute slices of a GPU instance."""
    for info in _compute_kinds(part):
        if info.sliceCount == slices:
            pynvml.nvmlGpuInstanceCreateComputeInstance(part, info.id)
            return
    raise MigError(f"the driver has no compute instance profile of {slices} slices for a GPU instance of as many")


def _computes(part: Handle) -> Iterator[Handle]:
    for info in _compute_kinds(part):
        yield from _listed_by(pynvml.nvmlGpuInstanceGetComputeInstances, pynvml.c_nvmlComputeInstance_t, part, info)


def _compute_kinds(part: Handle) -> Iterator[Any]:
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        with suppress(*_ABSENT):
            yield pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                part, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version=1
            )


def _listed_by(ask: Callable[..., object], kind: Any, owner: Handle, info: Any) -> list[Handle]:
    """Return the handles of all instances of a profile."""
    count = pynvml.c_uint(0)
    found = (kind * max(_LEAST_ROOM, int(info.instanceCount)))()
    ask(owner, info.id, found, pynvml.byref(count))
    return list(found[: count.value])


def _listed(starts: list[int]) -> str:
    return ", ".join(map(str, starts)) or "no memory slice"
