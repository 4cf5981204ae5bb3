"""What a described node is made of: cards, their MIG devices, the ways between cards; and NVML's own numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Literal

ALL_FUNCTIONS = "*"
"""In place of a function's name: every function that is asked about the card, looking it up included."""


class ErrorCode(IntEnum):
    """NVML's error codes that a test may want a call to fail with (`nvmlReturn_t`)."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    UNKNOWN = 999


class EventType(IntFlag):
    """NVML's event types that a health check listens to (`nvmlEventType…`)."""

    SINGLE_BIT_ECC_ERROR = 0x1
    DOUBLE_BIT_ECC_ERROR = 0x2
    PSTATE = 0x4
    XID_CRITICAL_ERROR = 0x8
    CLOCK = 0x10
    ALL = SINGLE_BIT_ECC_ERROR | DOUBLE_BIT_ECC_ERROR | PSTATE | XID_CRITICAL_ERROR | CLOCK


class Topology(IntEnum):
    """How far two cards are from each other (`nvmlGpuTopologyLevel_t`): the first thing that both hang from."""

    INTERNAL = 0
    SINGLE_SWITCH = 10
    MULTIPLE_SWITCHES = 20
    HOST_BRIDGE = 30
    NUMA_NODE = 40
    SYSTEM = 50


LimitBackend = Literal["off", "misc", "dmem"]
"""How a driver from 615 on limits the memory of cgroups: not at all, by its own account, or by the kernel's controller
dmem (NVIDIA, "Multi-Process Service", r615, "MPS v3 Memory Partitioning")."""
DRIVER_WITH_LIMITS = "615.71.09"
"""A driver that limits the memory of cgroups."""

ProcessKind = Literal["compute", "graphics", "mps"]
"""In which of NVML's lists a process is: those that compute, that draw, or that compute through MPS."""


@dataclass(frozen=True, slots=True)
class FakeProcess:
    """A process that uses a card or a MIG device, by its number.

    `memory_mib` is None where the driver cannot say (`NVML_VALUE_NOT_AVAILABLE`), `utilization` the percent of the
    time in which it computed lately, None where it did not.
    """

    pid: int
    memory_mib: int | None = 0
    utilization: int | None = None
    kind: ProcessKind = "compute"


@dataclass(frozen=True, slots=True)
class FakeMigInstance:
    """One MIG device: a compute instance in a GPU instance.

    `profile` is such as `1g.5gb`, `1c.3g.20gb` or `1g.5gb+me`; slices, multiprocessors, memory and `profile_number`
    (`NVML_GPU_INSTANCE_PROFILE_…`) follow from it where they are left out, as on an A100. `name` follows from the
    card's, `uuid` from the card's and the place in it. `failures` maps names of NVML functions to the error code they
    answer for this device; `nvmlDeviceGetMigDeviceHandleByIndex` with NOT_FOUND leaves a gap in the numbers. On a card
    with `mig_profiles` the instance has `size` memory slices from `start` on, the first where there is room.
    """

    profile: str = "1g.5gb"
    uuid: str = ""
    name: str = ""
    gpu_instance: int | None = None
    compute_instance: int = 0
    profile_number: int | None = None
    gpu_slices: int | None = None
    compute_slices: int | None = None
    multiprocessors: int | None = None
    memory_mib: int | None = None
    reserved_mib: int = 0
    used_mib: int = 0
    copy_engines: int = 1
    decoders: int = 0
    encoders: int = 0
    jpegs: int = 0
    ofas: int = 0
    start: int | None = None
    size: int = 0
    compute_mode: int = 0
    processes: tuple[FakeProcess, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FakeGpu:
    """One card, an A100 where nothing else is said.

    `uuid`, `minor` and `pci_bus_id` follow from the place among the cards where they are left out; they are the same in
    every run. `brand` is a number of nvml.h (`nvmlBrandType_t`), 14 is Nvidia. Memory is in MiB: `memory_mib` is all of
    it, of which the driver keeps `reserved_mib`. `mig_enabled` is None for a card that does not know MIG mode.
    `mig_profiles` names a card of `mig_profiles.yaml`, which this one can be divided like through NVML; where it is
    empty, the card only has the instances that are described. A card of which `mig_needs_reset` is true takes another
    MIG mode only when it is reset. `switch_links` counts NvLinks to an NVSwitch, `idle_links` those that lead nowhere.
    `recovery_action` is what the driver says must be done for the card to be well again (0 is nothing;
    `NVML_GPU_RECOVERY_ACTION_…`), None for a driver that does not say. `utilization` is in percent, None for a card
    that does not say; `processes` are those that use it. `failures` maps names of NVML functions, or `ALL_FUNCTIONS`,
    to the error code they answer for this card; an old driver without `nvmlDeviceGetMemoryInfo_v2` answers
    FUNCTION_NOT_FOUND or NOT_SUPPORTED there.
    """

    name: str = "NVIDIA A100-SXM4-40GB"
    uuid: str = ""
    minor: int | None = None
    brand: int = 14
    pci_bus_id: str = ""
    pci_device_id: int = 0x20B010DE
    pci_subsystem_id: int = 0x134F10DE
    memory_mib: int = 40960
    reserved_mib: int = 0
    used_mib: int = 0
    compute_capability: tuple[int, int] = (8, 0)
    compute_mode: int = 0
    supported_events: EventType = EventType.ALL
    mig_enabled: bool | None = False
    mig_instances: tuple[FakeMigInstance, ...] = ()
    mig_profiles: str = ""
    mig_needs_reset: bool = False
    switch_links: int = 0
    idle_links: int = 0
    recovery_action: int | None = None
    utilization: int | None = 0
    processes: tuple[FakeProcess, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)


NO_MEMORY_REPORTED: Mapping[str, int] = {
    "nvmlDeviceGetMemoryInfo": ErrorCode.NOT_SUPPORTED,
    "nvmlDeviceGetMemoryInfo_v2": ErrorCode.NOT_SUPPORTED,
}
"""The failures of a card that uses the memory of the host, as on GB10 with driver 580.173
(github.com/XuehaiPan/nvitop, pull request 208)."""
GB10 = FakeGpu("NVIDIA GB10", compute_capability=(12, 1), mig_enabled=None, failures=NO_MEMORY_REPORTED)
"""A card that uses the memory of the host, and reports none."""


@dataclass(frozen=True, slots=True)
class FakeConnection:
    """The way between two cards, by their indices.

    `nvlinks` counts the NvLinks that join them directly; `p2p_status` is what `nvmlDeviceGetP2PStatus` answers for
    every capability (0 is yes; for NvLink it takes a link as well).
    """

    first: int
    second: int
    topology: Topology = Topology.SYSTEM
    nvlinks: int = 0
    p2p_status: int = 0
