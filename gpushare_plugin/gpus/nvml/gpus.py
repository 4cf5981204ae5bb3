"""GPUs, read through NVML, NVIDIA's management library.

Facts: nvml.h of the CUDA toolkit. Closeness scores follow the order of links in NVIDIA's gpuallocator
(github.com/NVIDIA/go-gpuallocator, gpuallocator/besteffort_policy.go).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml
import structlog

from gpushare_plugin.base.errors import NoGpuLibraryError
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.gpu import Closeness, FailedGpu, Gpu, Inventory
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.core.usage import GpuUsage
from gpushare_plugin.gpus.nvml.events import EventWatch
from gpushare_plugin.gpus.nvml.initialisation import PROCFS, SYSFS, refuse_mismatch
from gpushare_plugin.gpus.nvml.library import NvmlLibrary
from gpushare_plugin.gpus.nvml.memory import read_memory
from gpushare_plugin.gpus.nvml.mig import read_capabilities, read_instances
from gpushare_plugin.gpus.nvml.sysfs import machine, numa_node, pci_class, pci_root
from gpushare_plugin.gpus.nvml.unanswered import UNANSWERED, answered
from gpushare_plugin.gpus.nvml_answers import card_uuid, clashes, shown, usable_mib, why
from gpushare_plugin.gpus.source import Asked

if TYPE_CHECKING:
    from gpushare_plugin.gpus.memory_limits import LimitError, LimitReading
    from gpushare_plugin.gpus.nvml.usage import ProcessReader

_log = structlog.get_logger()

_NVLINK_SCORE = 100
"""Points for one NVLink: more than for any PCI path."""
_PCI_SCORE = {
    pynvml.NVML_TOPOLOGY_INTERNAL: 60,
    pynvml.NVML_TOPOLOGY_SINGLE: 50,
    pynvml.NVML_TOPOLOGY_MULTIPLE: 40,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: 30,
    pynvml.NVML_TOPOLOGY_NODE: 20,
    pynvml.NVML_TOPOLOGY_SYSTEM: 10,
}
_BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
"""The brands by the numbers of nvml.h (`nvmlBrandType_t`), in the words of NVIDIA/go-nvlib, pkg/nvlib/device."""
_SWITCH = "NVSwitch"
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
"""Errors of a card off the bus, and of a card that needs a reset."""
_RECOVERY_ACTION_FIELD = 230
_NO_RECOVERY_ACTION = 0
"""nvml.h: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_GPU_RECOVERY_ACTION_NONE; older versions of pynvml lack both."""

Handle = Any
"""An opaque pointer of NVML."""


class NvmlSource:
    """The GPUs of the node, read through NVML; NVML stays initialised while the kernel lists the same cards."""

    def __init__(
        self,
        driver_root: Path,
        sysfs: Path = SYSFS,
        procfs: Path = PROCFS,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Look for the library below `driver_root` first, then in the loader's search path.

        `sysfs` has the NUMA nodes, the PCI classes and the model of the host. `procfs` has the capabilities of MIG
        instances and the containers of processes. Both have the kernel's list of cards. The watch for events calls
        `pause` with the seconds to wait before the next attempt.
        """
        self._library = NvmlLibrary(driver_root, sysfs, procfs)
        self._sysfs = sysfs
        self._procfs = procfs
        self._pause = pause
        self._reading = threading.Lock()
        self._uuids: dict[int, str] = {}
        self._placed: frozenset[tuple[str, str]] = frozenset()
        self._closeness: Closeness = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._processes: ProcessReader | None = None
        self._watch: EventWatch | None = None

    def read(self) -> Inventory:
        """Return all GPUs, MIG instances included; a GPU that does not answer is returned with the reason.

        Raises NoGpuLibraryError when NVML cannot be used at all, DriverChangedError when only another process can use
        NVML.
        """
        with self._reading:
            inventory = self._read()
            self._gpus = inventory.gpus
        return inventory

    def sample(self) -> tuple[GpuUsage, ...]:
        """Return the current use of the GPUs found by `read`; a GPU that does not answer is left out."""
        from gpushare_plugin.gpus.nvml.usage import ProcessReader  # noqa: PLC0415 - registration does not need the reader

        with self._reading:  # `read` takes the same lock, and may restart NVML
            self._processes = self._processes or ProcessReader(self._procfs)
            return self._processes.read(self._gpus)

    def read_limits(self, asked: Sequence[Asked]) -> "Mapping[Asked, LimitReading | LimitError]":
        """Return the memory limits of cgroups on GPUs, or the errors for which limits are unknown."""
        from gpushare_plugin.gpus.nvml.memory_limits import readings  # noqa: PLC0415 - only with driver limits

        with self._reading:
            return readings(asked)

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Wait for XIDs and double-bit ECC errors of all cards found by `read`, until the process ends.

        Only an exception of `report`, `beat` or `pause` ends the wait. Meanwhile another thread may call `read`.
        """
        self._watch = EventWatch(self._library, report, beat, self._pause)
        self._watch.run()

    def _read(self) -> Inventory:
        self._library.refuse_replaced()
        if self._library.open():
            self._uuids.clear()
            self._placed = frozenset()
        try:
            count = pynvml.nvmlDeviceGetCount()
            driver = answered(partial(shown, pynvml.nvmlSystemGetDriverVersion), "")
            cuda = answered(pynvml.nvmlSystemGetCudaDriverVersion_v2, 0)
        except pynvml.NVMLError as error:
            refuse_mismatch(error)
            raise NoGpuLibraryError(f"NVML cannot list the GPUs: {error}; see nvidia-smi") from error
        if count == 0:
            # Where the kernel lists no cards, either, only a restart of NVML reveals the first card.
            self._library.close()
        found = [self._card(index) for index in range(count)]
        failed = [card for card in found if isinstance(card, FailedGpu)]
        cards = [card for card in found if not isinstance(card, FailedGpu)]
        twins = clashes(gpu for gpu, _ in cards)
        cards = [(gpu, handle) for gpu, handle in cards if gpu.uuid not in twins]
        self._library.publish(gpu.uuid for gpu, _ in cards)
        parts = list(self._instances(cards))
        failed += [part for part in parts if isinstance(part, FailedGpu)]
        instances = [part for part in parts if not isinstance(part, FailedGpu)]
        twins |= clashes(instances)
        return Inventory(
            cards=tuple(gpu for gpu, _ in cards),
            failed=(*failed, *chain.from_iterable(twins.values())),
            driver_version=driver,
            cuda_version=(cuda // 1000, cuda % 1000 // 10),
            closeness=self._closeness_of(cards),
            needs_reset={gpu.uuid: needed for gpu, handle in cards if (needed := _needs_reset(handle)) is not None},
            unwatched=self._watch.unwatched(gpu.uuid for gpu, _ in cards) if self._watch else {},
            instances=tuple(gpu for gpu in instances if gpu.uuid not in twins),
            machine=machine(self._sysfs),
        )

    def _instances(self, cards: Sequence[tuple[Gpu, Handle]]) -> Iterator[Gpu | FailedGpu]:
        capabilities = read_capabilities(self._procfs)
        for gpu, handle in cards:
            if gpu.mig_enabled:
                yield from read_instances(gpu, handle, capabilities)

    def _closeness_of(self, cards: Sequence[tuple[Gpu, Handle]]) -> Closeness:
        """Return the closeness of the cards.

        Asks the driver, in hundreds of calls, only after the cards have changed.
        """
        placed = frozenset((gpu.uuid, gpu.pci_bus_id) for gpu, _ in cards)
        if placed != self._placed:
            self._closeness = _closeness(cards)
            self._placed = placed
        return self._closeness

    def _card(self, index: int) -> tuple[Gpu, Handle] | FailedGpu:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            refuse_mismatch(error)
            # NVML's numbers last until the next initialisation, so the number of a lost card still leads to its UUID.
            lost = error.value in _LOST or error.value == pynvml.NVML_ERROR_NOT_FOUND
            return FailedGpu(index, str(error), self._uuids.get(index), lost)
        try:
            self._uuids[index] = uuid = card_uuid(_needed("UUID", pynvml.nvmlDeviceGetUUID, handle))
            bus_id = _bus_id(handle)
            mig = _mig_enabled(handle)
            memory = read_memory(handle)
            gpu = Gpu(
                index=index,
                uuid=uuid,
                minor=_needed("minor number", pynvml.nvmlDeviceGetMinorNumber, handle),
                name=answered(partial(shown, partial(pynvml.nvmlDeviceGetName, handle)), ""),
                compute_capability=_compute_capability(handle),
                memory_mib=usable_mib(memory.total, memory.reserved) if memory else 0,
                pci_bus_id=bus_id,
                numa_node=numa_node(self._sysfs, bus_id),
                mig_enabled=mig or False,
                mig_capable=mig is not None,
                total_mib=memory.total // MIB if memory else 0,
                pci_class=pci_class(self._sysfs, bus_id),
                brand=_BRANDS.get(answered(partial(pynvml.nvmlDeviceGetBrand, handle), 0), ""),
                pci_root=pci_root(self._sysfs, bus_id),
            )
        except (pynvml.NVMLError, ValueError) as error:
            refuse_mismatch(error)
            lost = isinstance(error, pynvml.NVMLError) and error.value in _LOST
            return FailedGpu(index, why(error), self._uuids.get(index), lost)
        return gpu, handle


def _needed(what: str, ask: Callable[[Handle], Any], handle: Handle) -> Any:
    """Return the answer to a question without which a card cannot be offered; raises ValueError without an answer.

    UUIDs name units and GPUs everywhere, minor numbers name the device nodes of containers.
    """
    try:
        return ask(handle)
    except UNANSWERED as error:
        raise ValueError(f"NVML does not report its {what} ({error}), and it cannot be offered without one") from error


def _bus_id(handle: Handle) -> str:
    """Return the PCI address of a card, empty for a card that does not report one."""
    found = answered(partial(pynvml.nvmlDeviceGetPciInfo, handle), None)
    return found.busId if found else ""


def _compute_capability(handle: Handle) -> tuple[int, int] | None:
    """Return the CUDA compute capability of a card, None for a card that does not report one."""
    found = answered(partial(pynvml.nvmlDeviceGetCudaComputeCapability, handle), None)
    return (int(found[0]), int(found[1])) if found else None


def _mig_enabled(handle: Handle) -> bool | None:
    """Return whether MIG mode is on, None for a card without MIG mode."""
    modes = answered(partial(pynvml.nvmlDeviceGetMigMode, handle), None)
    return bool(modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE) if modes else None


def _needs_reset(handle: Handle) -> bool | None:
    """Return whether the driver demands a recovery action before the card is used again; None without an answer."""
    try:
        (answer,) = pynvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION_FIELD])
    except pynvml.NVMLError:
        return None
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return bool(answer.value.uiVal != _NO_RECOVERY_ACTION)


def _closeness(cards: Sequence[tuple[Gpu, Handle]]) -> Closeness:
    """Score every pair of GPUs by NVLinks and PCI path; a link or path unknown to the driver scores 0."""
    links = {gpu.uuid: Counter(_nvlink_peers(handle)) for gpu, handle in cards}
    scores = {}
    for (one, one_handle), (other, other_handle) in combinations(cards, 2):
        direct = links[one.uuid][other.pci_bus_id]
        switched = min(links[one.uuid][_SWITCH], links[other.uuid][_SWITCH])
        try:
            level = pynvml.nvmlDeviceGetTopologyCommonAncestor(one_handle, other_handle)
        except pynvml.NVMLError as error:
            _log.debug("pci_path_unknown", gpus=[one.uuid, other.uuid], error=str(error))
            level = None
        scores[frozenset((one.uuid, other.uuid))] = _NVLINK_SCORE * (direct + switched) + _PCI_SCORE.get(level, 0)
    return scores


def _nvlink_peers(handle: Handle) -> Iterator[str]:
    """Yield the other end of each active NVLink of a card: the PCI bus ID of a GPU, or `NVSwitch`."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_FEATURE_ENABLED:
                continue
            if pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                yield _SWITCH
            else:
                yield pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
        except pynvml.NVMLError:
            return  # the card has no link with this number, or no links at all
