"""GPUs described by a YAML file, for clusters and laptops without GPUs.

driverVersion: "615.71.09"      # only the keys gpus and memory are required
cudaVersion: "12.8"
machine: DGX A100
driverLimits: hook              # what limits memory by the driver: hook or agent; without the key, nothing does
gpus:
- name: NVIDIA A100-SXM4-40GB
  memory: 40GiB                 # usable memory of each card
  count: 4
  computeCapability: "8.0"
  numaNode: 0
  mode: compute                 # compute or graphics
  processes:                    # the processes on each card
  - pod: default/trainer        # without a pod, a process of the host
    container: main
    memory: 6GiB
    utilization: 40             # percent
- memory: 40GiB
  mig: [3g.20gb, 1g.5gb]        # a card in MIG mode, and its instances
- memory: unreported            # a card that does not report its memory, such as GB10
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self
from uuid import NAMESPACE_OID, uuid5

from annotated_types import Ge
from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from gpushare_plugin.base.errors import ConfigError
from gpushare_plugin.base.errors import Path as Place
from gpushare_plugin.base.memory import MIB, MIB_PER_GIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.loading.document import read
from gpushare_plugin.config.schema.fields import Kind, keys, kind_at
from gpushare_plugin.config.schema.places import SettingPlaces
from gpushare_plugin.config.schema.sections import Allowed, CardMemory, Section
from gpushare_plugin.config.schema.spelling import nearest, shown, wrong
from gpushare_plugin.config.schema.values import MEMORY_UNIT_SCHEMA, MemoryUnit, parse_card_memory, text_like
from gpushare_plugin.core.driver_limits import FIRST_DRIVER, DriverLimits, has_driver_limits
from gpushare_plugin.core.gpu import Gpu, Inventory, MigAttributes, MigInstance
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.core.usage import GpuUsage, Owner, Process
from gpushare_plugin.gpus.source import Asked

if TYPE_CHECKING:
    from gpushare_plugin.gpus.memory_limits import LimitError

_SAME_NUMA_NODE = 20
_OTHER_NUMA_NODE = 10
"""The closeness scores of NVML's levels NODE and SYSTEM (see `gpus.nvml.gpus`)."""

_WHAT = "the file of simulated GPUs"
_SMALLEST = 'the smallest file has the one line "gpus: [{memory: 16GiB}]"'

_MIG_PROFILE = re.compile(r"([1-7]c\.)?[1-7]g\.[1-9][0-9]{0,2}gb([-+][a-z]+(\.[a-z]+)?)?", re.ASCII)
_PROFILES = "a MIG profile such as 1g.5gb, 1c.3g.20gb or 1g.5gb+me"
_MULTIPROCESSORS_PER_SLICE = 14
"""The number of an A100."""
_PCI_CLASSES = {"compute": 0x030200, "graphics": 0x030000}
_MOST_INSTANCES = 7
_GPU_INSTANCES = 15
_COMPUTE_INSTANCES = 8
"""The driver has capabilities for this many IDs of GPU instances on a card, and of compute instances on a GPU instance,
used or not."""


def _profile(text: str) -> str:
    if _MIG_PROFILE.fullmatch(text):
        return text
    raise ValueError(wrong(text, _PROFILES))


_UNREPORTED = "unreported"
_VERSION = r"[0-9]+\.[0-9]+"
_UUID = "GPU-[-0-9a-f]{36}"
_POD = r"[-a-z0-9]{1,63}/[-.a-z0-9]{1,253}"


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    raise ValueError(wrong(text, "text on one line, without control characters"))


def _reported_memory(value: object) -> MemoryUnit:
    if value == _UNREPORTED:
        return MemoryUnit(0)
    try:
        return parse_card_memory(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {_UNREPORTED}") from error


Profile = Annotated[str, Allowed(_PROFILES, text_like(_MIG_PROFILE.pattern)), AfterValidator(_profile)]
"""A MIG profile."""
Version = Annotated[
    str, Allowed('a version such as "8.0", in quotes', text_like(_VERSION)), Field(pattern=f"^{_VERSION}$")
]
"""A version with a major and a minor number."""
Uuid = Annotated[
    str,
    Allowed("GPU- and 36 hexadecimal digits and dashes", text_like(_UUID)),
    Field(pattern=f"^{_UUID}$"),
]
"""The UUID of a card."""
OneLine = Annotated[str, AfterValidator(_one_line)]
"""Text on one line, without control characters."""
ReportedMemory = Annotated[
    MemoryUnit,
    Allowed(f"{MemoryUnit.allowed}, or {_UNREPORTED}", {"anyOf": [MEMORY_UNIT_SCHEMA, {"const": _UNREPORTED}]}),
    PlainValidator(_reported_memory),
]
"""The usable memory of a card as the driver reports it, 0 MiB for a card whose memory the driver does not report."""


class SimulatedProcess(Section):
    """A process that uses a card; it counts as that of the pod it names where the pod holds the card."""

    pod: Annotated[str, Allowed("a pod as <namespace>/<name>", text_like(_POD)), Field(pattern=f"^{_POD}$")] | None = (
        Field(default=None, description="Pod of the process; without a pod, the process is on the host.")
    )
    container: OneLine = Field(default="", description="Container; needed where several of the pod hold the card.")
    memory: CardMemory = Field(description="Memory in use.")
    utilization: Annotated[int, Field(ge=0, le=100)] = Field(
        default=0, description="Percent of time in which the process computes."
    )


class SimulatedGpus(Section):
    """One entry of the file: `count` equal cards."""

    memory: ReportedMemory = Field(description=f"Usable memory of each card; `{_UNREPORTED}` for cards such as GB10.")
    name: OneLine = Field(default="Simulated GPU", description="Product name.")
    count: Annotated[int, Field(ge=1, le=64)] = Field(default=1, description="Number of such cards.")
    uuid: Uuid | None = Field(default=None, description="UUID of a single card; by default made from the index.")
    compute_capability: Version = Field(default="8.0", description="CUDA compute capability.")
    numa_node: Annotated[int, Ge(0)] | None = Field(default=None, description="NUMA node.")
    mode: Literal["compute", "graphics"] = Field(default="compute", description="Whether the card drives displays.")
    mig_enabled: bool = Field(default=False, description="Whether the card is in MIG mode.")
    mig: Annotated[
        tuple[Profile, ...],
        Field(strict=False, max_length=_MOST_INSTANCES),
        Allowed(f"a list of at most {_MOST_INSTANCES} MIG profiles"),
    ] = Field(default=(), description="MIG instances; with any, the card is in MIG mode.")

    processes: Annotated[tuple[SimulatedProcess, ...], Field(strict=False)] = Field(
        default=(), description="Processes on each of the cards; none with MIG."
    )

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.uuid and self.count > 1:
            raise ValueError(f"found a uuid for {self.count} GPUs; a uuid names one GPU: leave uuid or count out")
        if not self.memory.mib and (self.mig or self.mig_enabled):
            raise ValueError(
                f"found memory: {_UNREPORTED} on a card in MIG mode, whose instances need a part; give a size"
            )
        if self.processes and (self.mig or self.mig_enabled):
            raise ValueError("found processes on a card in MIG mode, where they cannot be simulated; leave them out")
        return self


class SimulatedNode(Section):
    """The whole file."""

    gpus: Annotated[tuple[SimulatedGpus, ...], Field(strict=False)] = Field(description="The cards, in index order.")
    driver_version: OneLine = Field(default="570.86.15", description="Version of the driver.")
    cuda_version: Version = Field(default="12.8", description="CUDA version of the driver.")
    machine: OneLine = Field(default="Simulated machine", description="Model of the host.")
    driver_limits: Literal["hook", "agent"] | None = Field(
        default=None,
        description="What sets driver limits (`isolation: driver`): a hook of CDI or the agent; by default nothing.",
    )

    @model_validator(mode="after")
    def _refuse_limits_of_an_older_driver(self) -> Self:
        if self.driver_limits and not has_driver_limits(self.driver_version):
            raise ValueError(
                f"found driverLimits: {self.driver_limits} and driverVersion: {self.driver_version}, but drivers from "
                f"{FIRST_DRIVER} on limit memory; set driverVersion, too"
            )
        return self

    @field_validator("gpus")
    @classmethod
    def _refuse_none_and_twice(cls, gpus: tuple[SimulatedGpus, ...]) -> tuple[SimulatedGpus, ...]:
        if not gpus:
            raise ValueError(f"found no GPU, at least one expected; {_SMALLEST}")
        given = Counter(entry.uuid for entry in gpus if entry.uuid)
        if twice := [uuid for uuid, times in given.items() if times > 1]:
            raise ValueError(f"found {', '.join(twice)} more than once; each GPU needs its own uuid")
        return gpus


class SimulatedSource:
    """The GPUs described by a file."""

    def __init__(self, file: Path) -> None:
        """Take the GPUs from `file`; every call reads the file again."""
        self._file = file

    def read(self) -> Inventory:
        """Return the GPUs of the file; raises ConfigError with all mistakes in the file."""
        return _inventory(self._node())

    def sample(self) -> tuple[GpuUsage, ...]:
        """Return the use of the GPUs by the processes of the file; raises ConfigError like `read`."""
        node = self._node()
        cards = [entry for entry in node.gpus for _ in range(entry.count)]
        return tuple(map(_sample, _inventory(node).cards, cards))

    def _node(self) -> SimulatedNode:
        try:
            root, findings = read(self._file, _SMALLEST)
        except ConfigError as error:
            raise ConfigError(error.lines, _WHAT) from error
        lines = [f"{finding.place}: {finding.message}" for finding in findings]
        if root is not None and not root.at("gpus") and (given := [*root.at("sharing"), *root.at("version")]):
            lines = [f"{given[-1].place}: found a config, but simulated GPUs are expected; {_SMALLEST}"]
            root = None
        if root is None:
            raise ConfigError(lines, _WHAT)
        try:
            node: SimulatedNode = SimulatedNode.model_validate(root.plain(), by_alias=True, by_name=False)
        except ValidationError as error:
            places = SettingPlaces(root)
            lines += [f"{places.describe(each['loc'])}: {_message(each)}" for each in error.errors()]
            raise ConfigError(lines, _WHAT) from error
        if lines:
            raise ConfigError(lines, _WHAT)
        return node

    def read_limits(self, asked: Sequence[Asked]) -> "Mapping[Asked, LimitError]":
        """Return that the memory limits are unknown: simulated GPUs have no driver."""
        from gpushare_plugin.gpus.memory_limits import LimitError  # noqa: PLC0415 - only with driver limits

        return dict.fromkeys(asked, LimitError("simulated GPUs have no driver that limits memory"))

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Return at once: simulated GPUs have no events."""


_SECTIONS: Mapping[int, type[Section]] = {1: SimulatedNode, 3: SimulatedGpus, 5: SimulatedProcess}
"""The section of an unknown key, by the depth of the key."""


def _message(error: ErrorDetails) -> str:
    match error["type"]:
        case "value_error":
            return str(error["ctx"]["error"])
        case "extra_forbidden":
            return _unknown_key(str(error["loc"][-1]), _SECTIONS[len(error["loc"])])
        case "missing":
            return f"missing; allowed: {_kind(error['loc']).allowed}"
        case _:
            return wrong(error["input"], _kind(error["loc"]).allowed)


def _kind(path: Place) -> Kind:
    """Return the kind of value allowed at `path` of the file."""
    return kind_at(path, SimulatedNode) or _kind(path[:-1])


def _unknown_key(key: str, section: type[Section]) -> str:
    allowed = keys(section)
    meant = nearest(key, allowed)
    question = f' did you mean "{meant}"?' if meant else ""
    return f"unknown key {shown(key)};{question} Allowed here: {', '.join(allowed)}"


def _inventory(node: SimulatedNode) -> Inventory:
    cards = [entry for entry in node.gpus for _ in range(entry.count)]
    gpus = tuple(_gpu(index, entry) for index, entry in enumerate(cards))
    return Inventory(
        cards=gpus,
        instances=tuple(
            _instance(gpu, number, profile)
            for gpu, entry in zip(gpus, cards, strict=True)
            for number, profile in enumerate(entry.mig)
        ),
        driver_version=node.driver_version,
        cuda_version=_numbers(node.cuda_version),
        machine=node.machine,
        driver_limits=_limits(node),
        closeness={frozenset((one.uuid, other.uuid)): _closeness(one, other) for one, other in combinations(gpus, 2)},
    )


def _limits(node: SimulatedNode) -> DriverLimits:
    if has_driver_limits(node.driver_version):
        return _LIMITS[node.driver_limits]
    return DriverLimits(
        f"driver {node.driver_version} of the simulated GPUs limits no memory, and drivers from {FIRST_DRIVER} on do; "
        "to simulate driver limits, set driverVersion and driverLimits in the file of the GPUs"
    )


_LIMITS = {
    None: DriverLimits("simulated GPUs have no driver that limits memory, unless their file has driverLimits"),
    "hook": DriverLimits(),
    "agent": DriverLimits(hook="the file of simulated GPUs has no hook", agent=True),
}
"""The means to limit memory, by `driverLimits`."""


def _gpu(index: int, entry: SimulatedGpus) -> Gpu:
    return Gpu(
        index=index,
        uuid=entry.uuid or f"GPU-{uuid5(NAMESPACE_OID, f'gpushare {index}')}",
        minor=index,
        name=entry.name,
        compute_capability=_numbers(entry.compute_capability),
        memory_mib=entry.memory.mib,
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        numa_node=entry.numa_node,
        mig_enabled=entry.mig_enabled or bool(entry.mig),
        mig_capable=entry.mig_enabled or bool(entry.mig),
        total_mib=entry.memory.mib,
        pci_class=_PCI_CLASSES[entry.mode],
    )


def _sample(gpu: Gpu, entry: SimulatedGpus) -> GpuUsage:
    """Return the use of a card; process IDs begin at 1."""
    used_mib = min(gpu.memory_mib, sum(each.memory.mib for each in entry.processes))
    return GpuUsage(
        gpu.uuid,
        gpu.memory_mib * MIB or None,
        used_mib * MIB if gpu.memory_mib else None,
        min(100, sum(each.utilization for each in entry.processes)) / 100,
        tuple(
            Process(
                pid,
                "simulated",
                each.memory.mib * MIB,
                each.utilization / 100,
                Owner(pod=each.pod or "", container=each.container),
            )
            for pid, each in enumerate(entry.processes, 1)
        ),
    )


def _instance(card: Gpu, number: int, profile: str) -> Gpu:
    """Return a MIG instance with a GPU instance of its own.

    The memory follows from the profile. The UUID follows from the card, the number and the profile.
    """
    gpu_instance = number + 1
    # The driver numbers all capabilities in one row: "config", "monitor", then the capabilities of every possible ID.
    first = 3 + (card.minor * _GPU_INSTANCES + gpu_instance) * (1 + _COMPUTE_INSTANCES)
    gigabytes = int(profile.partition("gb")[0].rpartition(".")[2])
    return replace(
        card,
        uuid=f"MIG-{uuid5(NAMESPACE_OID, f'{card.uuid} {number} {profile}')}",
        memory_mib=gigabytes * MIB_PER_GIB,
        mig=MigInstance(card.uuid, number, profile, gpu_instance, 0, (first, first + 1), _attributes(profile)),
    )


def _attributes(profile: str) -> MigAttributes:
    compute, _, gpu = profile.partition("g.")[0].rpartition("c.")
    gpu_slices, compute_slices = int(gpu), int(compute or gpu)
    return MigAttributes(
        gpu_slices, compute_slices, _MULTIPROCESSORS_PER_SLICE * compute_slices, copy_engines=gpu_slices
    )


def _closeness(one: Gpu, other: Gpu) -> int:
    return _SAME_NUMA_NODE if one.numa_node == other.numa_node else _OTHER_NUMA_NODE


def _numbers(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor)
