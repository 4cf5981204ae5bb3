"""GPUs as NVIDIA's management library reports them; the only importer of `pynvml`.

Facts: nvml.h of the CUDA toolkit; closeness scores follow the order of links that NVIDIA's gpuallocator uses
(github.com/NVIDIA/go-gpuallocator, gpuallocator/besteffort_policy.go).
"""

import ctypes
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pynvml
import structlog

from gpushare_plugin.errors import NoGpuLibraryError
from gpushare_plugin.model.gpu import FailedGpu, Gpu, Inventory

_log = structlog.get_logger()

_MIB = 1024 * 1024
_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)
_NVLINK_SCORE = 100
"""Points for one NVLink: more than any PCI path gives."""
_PCI_SCORE = {
    pynvml.NVML_TOPOLOGY_INTERNAL: 60,
    pynvml.NVML_TOPOLOGY_SINGLE: 50,
    pynvml.NVML_TOPOLOGY_MULTIPLE: 40,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: 30,
    pynvml.NVML_TOPOLOGY_NODE: 20,
    pynvml.NVML_TOPOLOGY_SYSTEM: 10,
}
_SWITCH = "NVSwitch"

Handle = Any
"""An opaque pointer of NVML."""


class NvmlSource:
    """The GPUs of this node, asked through NVML, which is initialised once."""

    def __init__(self, driver_root: Path, sysfs: Path = Path("/sys")) -> None:
        """Look for the library below `driver_root` first, then where the loader looks; NUMA nodes come from `sysfs`."""
        self._driver_root = driver_root
        self._sysfs = sysfs
        self._initialised = False

    def read(self) -> Inventory:
        """Return every GPU that answers, and those that do not with the reason."""
        self._initialise()
        try:
            count = pynvml.nvmlDeviceGetCount()
            driver = pynvml.nvmlSystemGetDriverVersion()
            cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        except pynvml.NVMLError as error:
            raise NoGpuLibraryError(f"NVML does not say which GPUs there are: {error}; see nvidia-smi") from error
        if count == 0:
            # NVML lists the cards there are when it is initialised, so the next look has to begin anew.
            pynvml.nvmlShutdown()
            self._initialised = False
        handles: dict[str, Handle] = {}
        gpus: list[Gpu] = []
        failed: list[FailedGpu] = []
        for index in range(count):
            answer = self._card(index, handles)
            (gpus if isinstance(answer, Gpu) else failed).append(answer)  # type: ignore[arg-type] # by its own kind
        return Inventory(
            gpus=tuple(gpus),
            failed=tuple(failed),
            driver_version=driver,
            cuda_version=(cuda // 1000, cuda % 1000 // 10),
            closeness=_closeness([(gpu, handles[gpu.uuid]) for gpu in gpus]),
        )

    def _initialise(self) -> None:
        if self._initialised:
            return
        self._load_library()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoGpuLibraryError(
                f"NVML cannot be used: {error}. On a GPU node: is the NVIDIA driver installed, and does this container "
                "see it (runtimeClassName nvidia, or nvidiaDriverRoot)? On a node without GPUs: keep this daemon off it"
            ) from error
        self._initialised = True

    def _load_library(self) -> None:
        """Load the driver's own library, so that pynvml, which asks for it by name, gets this one."""
        for folder in _LIBRARY_FOLDERS:
            path = self._driver_root / folder / _LIBRARY
            if path.exists():
                try:
                    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
                except OSError as error:
                    raise NoGpuLibraryError(f"{path} cannot be loaded: {error}") from error
                return

    def _card(self, index: int, handles: dict[str, Handle]) -> Gpu | FailedGpu:
        uuid = None
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
            gpu = Gpu(
                index=index,
                uuid=uuid,
                minor=pynvml.nvmlDeviceGetMinorNumber(handle),
                name=pynvml.nvmlDeviceGetName(handle),
                compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
                memory_mib=_usable_memory(handle) // _MIB,
                pci_bus_id=bus_id,
                numa_node=self._numa_node(bus_id),
                mig_enabled=_mig_enabled(handle),
            )
        except (pynvml.NVMLError, ValueError) as error:
            return FailedGpu(index, str(error), uuid)
        handles[gpu.uuid] = handle
        return gpu

    def _numa_node(self, bus_id: str) -> int | None:
        """Return the NUMA node the kernel knows for a PCI device, None where it knows none (-1, or no such file)."""
        # NVML writes the PCI domain with eight digits, the kernel with four.
        domain, _, rest = bus_id.lower().partition(":")
        path = self._sysfs / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}" / "numa_node"
        try:
            node = int(path.read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None


def _usable_memory(handle: Handle) -> int:
    """Return bytes: the card's total less what the driver reserves (old drivers do not tell: nothing)."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    return int(memory.total - memory.reserved)


def _mig_enabled(handle: Handle) -> bool:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _closeness(cards: Sequence[tuple[Gpu, Handle]]) -> dict[frozenset[str], int]:
    """Score every pair of GPUs by its NVLinks and its way through PCI; what the driver does not tell scores 0."""
    links = {gpu.uuid: Counter(_nvlink_peers(handle)) for gpu, handle in cards}
    scores = {}
    for (one, one_handle), (other, other_handle) in combinations(cards, 2):
        direct = links[one.uuid][other.pci_bus_id]
        switched = min(links[one.uuid][_SWITCH], links[other.uuid][_SWITCH])
        try:
            level = pynvml.nvmlDeviceGetTopologyCommonAncestor(one_handle, other_handle)
        except pynvml.NVMLError as error:
            _log.debug("no PCI path known between two GPUs", gpus=[one.uuid, other.uuid], error=str(error))
            level = None
        scores[frozenset((one.uuid, other.uuid))] = _NVLINK_SCORE * (direct + switched) + _PCI_SCORE.get(level, 0)
    return scores


def _nvlink_peers(handle: Handle) -> Iterator[str]:
    """Yield, for each active NVLink of a card, the PCI bus ID of the GPU at its other end, or that it is a switch."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_FEATURE_ENABLED:
                continue
            if pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                yield _SWITCH
            else:
                yield pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
        except pynvml.NVMLError:
            return  # the card has no link of this number, or none at all
