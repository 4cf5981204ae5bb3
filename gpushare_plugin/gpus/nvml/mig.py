"""The MIG instances of a card, reported by NVML.

Facts: nvml.h of the CUDA toolkit; the spelling of profiles, from github.com/NVIDIA/go-nvlib,
pkg/nvlib/device/mig_profile.go; `/proc/driver/nvidia-caps/mig-minors`, from NVIDIA's "MIG User Guide", Device Nodes.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from gpushare_plugin.base.memory import MIB, MIB_PER_GIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import FailedGpu, Gpu, MigAttributes, MigInstance
from gpushare_plugin.gpus.nvml_answers import instance_uuid, usable_mib, why

_EIGHTHS = 8
ATTRIBUTES = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    0x0A: "+gfx",
    0x0B: "+gfx",
    0x0C: "+gfx",
    0x0D: "-me",
    0x0E: "-me",
    0x0F: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}
"""Suffixes of profile names, by NVML_GPU_INSTANCE_PROFILE_…; plain profiles have no suffix. Older pynvml lacks some
constants."""

_CAPABILITY = re.compile(r"(gpu[0-9]+/gi[0-9]+(?:/ci[0-9]+)?)/access ([0-9]+)", re.ASCII)

Capabilities = Mapping[str, int]
"""Numbers of capability device nodes, by `gpu<minor>/gi<ID>` and `gpu<minor>/gi<ID>/ci<ID>`."""

Handle = Any
"""An opaque pointer of NVML."""


def read_capabilities(procfs: Path) -> Capabilities:
    """Return the numbers of capability device nodes; empty where the driver is too old or not loaded."""
    try:
        text = (procfs / "driver/nvidia-caps/mig-minors").read_text()
    except OSError:
        return {}
    return {match[1]: int(match[2]) for line in text.splitlines() if (match := _CAPABILITY.fullmatch(line))}


def read_instances(card: Gpu, handle: Handle, capabilities: Capabilities) -> Iterator[Gpu | FailedGpu]:
    """Yield the MIG instances of a card in MIG mode, by number; an unreadable instance comes as a FailedGpu."""
    try:
        attributes = _attributes(handle)
        numbers = range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except pynvml.NVMLError as error:
        yield FailedGpu(card.index, f"its MIG instances cannot be listed: {error}")
        return
    for number in numbers:
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue  # the numbers may have gaps
        except pynvml.NVMLError as error:
            yield FailedGpu(card.index, str(error), number=number)
            continue
        uuid = None
        try:
            uuid = instance_uuid(pynvml.nvmlDeviceGetUUID(mig))
            gpu_instance = pynvml.nvmlDeviceGetGpuInstanceId(mig)
            compute_instance = pynvml.nvmlDeviceGetComputeInstanceId(mig)
            size = pynvml.nvmlDeviceGetAttributes(mig)
            part = pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance))
            memory_mib = usable_mib(int(size.memorySizeMB) * MIB, 0)
            size_gb = gigabytes(memory_mib, card.total_mib)
        except (pynvml.NVMLError, ValueError) as error:
            yield FailedGpu(card.index, _reason(error), uuid, number=number)
            continue
        profile = f"{_slices(size)}.{size_gb}gb{attributes.get(part.profileId, '')}"
        nodes = _nodes(capabilities, f"gpu{card.minor}/gi{gpu_instance}", f"ci{compute_instance}")
        yield replace(
            card,
            uuid=uuid,
            memory_mib=memory_mib,
            mig=MigInstance(
                card.uuid,
                number,
                profile,
                gpu_instance,
                compute_instance,
                nodes,
                _of_its_card(size),
                int(part.placement.start),
            ),
        )


def _attributes(handle: Handle) -> dict[int, str]:
    """Return the suffixes of the card's profile names, by profile ID."""
    found = {}
    for profile, attribute in ATTRIBUTES.items():
        # A card has only some of the profiles, and an older driver does not know every profile.
        with suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile, version=1)
            found[int(info.id)] = attribute
    return found


def _of_its_card(size: Any) -> MigAttributes:
    return MigAttributes(
        gpu_slices=size.gpuInstanceSliceCount,
        compute_slices=size.computeInstanceSliceCount,
        multiprocessors=size.multiprocessorCount,
        copy_engines=size.sharedCopyEngineCount,
        decoders=size.sharedDecoderCount,
        encoders=size.sharedEncoderCount,
        jpeg_decoders=size.sharedJpegCount,
        optical_flow_accelerators=size.sharedOfaCount,
    )


def _slices(size: Any) -> str:
    compute, gpu = size.computeInstanceSliceCount, size.gpuInstanceSliceCount
    return f"{gpu}g" if compute == gpu else f"{compute}c.{gpu}g"


def gigabytes(memory_mib: int, card_mib: int) -> int:
    """Return the gigabytes in a profile's name: the instance's eighths of the card, times the card's GiB, rounded.

    Raises ValueError for a card of unknown memory, 0 MiB.
    """
    if not card_mib:
        raise ValueError("NVML does not report the memory of its card, of which the name of its profile has a part")
    eighths = -(-memory_mib * _EIGHTHS // card_mib)
    card_gib = -(-card_mib // MIB_PER_GIB)
    return (eighths * card_gib + _EIGHTHS // 2) // _EIGHTHS


def _nodes(capabilities: Capabilities, gpu_instance: str, compute_instance: str) -> tuple[int, int] | None:
    try:
        return capabilities[gpu_instance], capabilities[f"{gpu_instance}/{compute_instance}"]
    except KeyError:
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError_NoPermission):
        return f"{error}: the driver reports profiles of MIG instances only to root with the capability SYS_ADMIN"
    return why(error)
