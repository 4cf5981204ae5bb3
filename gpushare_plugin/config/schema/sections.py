"""The config as frozen models: NVIDIA's schema `v1`, with additions of gpushare."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.isolations import (
    IsolationName,
    MpsIsolationName,
    TimeSlicedIsolationName,
    includes_driver,
    includes_mps,
    isolation_allowed,
    isolation_schema,
    limits_compute,
    parse_isolation,
    plain_isolation,
)
from gpushare_plugin.config.schema.spelling import wrong
from gpushare_plugin.config.schema.values import (
    BURST_ALLOWED,
    BURST_SCHEMA,
    COMPUTE_ALLOWED,
    COMPUTE_SCHEMA,
    DEVICES_ALLOWED,
    DEVICES_SCHEMA,
    MEMORY_UNIT_SCHEMA,
    SLICE_COMPUTE_ALLOWED,
    SLICE_COMPUTE_SCHEMA,
    SLICE_SIZE_ALLOWED,
    SLICE_SIZE_SCHEMA,
    XID_ALLOWED,
    XID_SCHEMA,
    XIDS_ALLOWED,
    XIDS_SCHEMA,
    AllDevices,
    Burst,
    Compute,
    DeviceCount,
    DeviceList,
    Devices,
    JsonSchema,
    MemoryUnit,
    SliceCompute,
    Spelled,
    Xid,
    Xids,
    parse_added_memory,
    parse_burst,
    parse_card_memory,
    parse_compute,
    parse_devices,
    parse_memory_by_default,
    parse_slice,
    parse_slice_compute,
    parse_xids,
    plain_burst,
    plain_devices,
    plain_xids,
    text_like,
)
from gpushare_plugin.core.health import APPLICATION_XIDS, RESET_XIDS, XidPolicy
from gpushare_plugin.core.namespaces import MpsProtocol
from gpushare_plugin.core.policies import DEFAULT_POLICY, DEFAULT_REPLICA_POLICY, PolicyName, ReplicaPolicyName
from gpushare_plugin.slices.memory import MOST_MPS_CLIENTS
from gpushare_plugin.slices.slice import Slice

__all__ = [
    "AllDevices",
    "Allowed",
    "Burst",
    "CardMemory",
    "Compute",
    "Config",
    "DeviceCount",
    "DeviceList",
    "Devices",
    "Dra",
    "DriverLimitSettings",
    "FeatureDiscoveryFlags",
    "Flags",
    "GpuMemory",
    "HamiCore",
    "Health",
    "Imex",
    "MemoryResource",
    "MemoryResources",
    "MemoryUnit",
    "Mps",
    "MpsResource",
    "Overuse",
    "PluginFlags",
    "ReplicatedResource",
    "ReplicatedResources",
    "ResourcePattern",
    "Resources",
    "Section",
    "Sharing",
    "SizedDevices",
    "Slices",
    "TimeSlicedResource",
    "TimeSlicing",
]


_EXAMPLE_MIB = 3000
"""The request in the examples of HAMi and Volcano, in MiB."""


class Allowed(Struct, frozen=True, eq=False):
    """The allowed values of a field, as a part of the field's annotation."""

    text: str
    """The allowed values in words, for messages and the reference."""
    schema: JsonSchema | None = None
    """The allowed values in JSON Schema; None if the type says enough."""


_ANNOTATION_PREFIX = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-A-Za-z0-9_.]*"
_CDI_KIND = r"[A-Za-z]([-\w.]*[A-Za-z0-9])?/[A-Za-z]([-\w]*[A-Za-z0-9])?"


def _absolute_path(path: str) -> str:
    if "\0" in path:
        raise ValueError(wrong(path, "an absolute path; the character U+0000 is in no name of a file"))
    if path.startswith("/"):
        return path
    raise ValueError(wrong(path, "an absolute path", f"/{path}" if path else None))


def _annotation_prefix(prefix: str) -> str:
    if re.fullmatch(_ANNOTATION_PREFIX, prefix):
        return prefix
    raise ValueError(wrong(prefix, "the start of an annotation key, such as cdi.k8s.io/"))


def _cdi_kind(kind: str) -> str:
    if re.fullmatch(_CDI_KIND, kind, re.ASCII):
        return kind
    raise ValueError(wrong(kind, "<vendor>/<class>, such as nvidia.com/gpu"))


def _served_discovery(strategy: str) -> str:
    if strategy == "tegra":
        raise ValueError('found "tegra", but only NVML is supported; allowed: auto, nvml')
    return strategy


def _duration(value: object) -> object:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return value
    raise ValueError(wrong(value, _DURATION))


def _channels(channels: tuple[int, ...]) -> tuple[int, ...]:
    if not channels:
        return channels
    found = some_of(tuple(map(str, channels)), _CHANNELS_TO_SHOW)
    raise ValueError(f"found [{found}], {_NO_CHANNELS} Allowed: []")


def _no_channel_required(required: bool) -> bool:  # noqa: FBT001 - the value to check
    if required:
        raise ValueError(f"found true, {_NO_CHANNELS} Allowed: false")
    return required


def _shareable(name: str, info: ValidationInfo) -> str:
    # The declared names depend on the rest of the file. The loader passes the names.
    return names.shareable(name, info.context["declared"]) if info.context else name


def _only_with_driver_limits(burst: Burst, info: ValidationInfo) -> Burst:
    isolation = info.data.get("isolation", ("driver",)) or ("mps",)
    if not includes_driver(isolation):
        found, now = plain_burst(burst), ", ".join(isolation)
        raise ValueError(
            f"found {found}, but isolation is {now}, and only the driver lets a container use free memory beyond its "
            "share; set isolation to driver, or leave burst out"
        )
    return burst


_BURST = (
    "Free memory that a container may also use: a multiple of the share, or a size. Needs driver limits and their "
    "agent. Default: the share."
)
_MPS_ISOLATION = "Limit of a share: MPS, or both the driver and MPS (here also `driver`). Default: MPS."
_CHANNELS_TO_SHOW = 8
_NO_CHANNELS = "but gpushare gives containers no IMEX channels; remove it."
_DURATION = "a duration such as 60s, or infinite"

_PATH_SCHEMA: JsonSchema = {"type": "string", "pattern": "^/"}

AbsolutePath = Annotated[str, Allowed("an absolute path", _PATH_SCHEMA), AfterValidator(_absolute_path)]
NvidiaName = Annotated[
    str,
    Allowed("an extended-resource name; without a domain it is nvidia.com's", text_like(names.PATTERN_WITHOUT_DOMAIN)),
    AfterValidator(names.with_nvidia_domain),
]
ChosenDevices = Annotated[
    Devices,
    Allowed(DEVICES_ALLOWED, DEVICES_SCHEMA),
    Spelled(parse_devices, plain_devices),
]
ChosenXids = Annotated[Xids, Allowed(XIDS_ALLOWED, XIDS_SCHEMA), Spelled(parse_xids, plain_xids)]
ChosenCompute = Annotated[Compute, Allowed(COMPUTE_ALLOWED, COMPUTE_SCHEMA), Spelled(parse_compute)]
ChosenIsolation = Annotated[
    tuple[IsolationName, ...],
    Allowed(isolation_allowed(get_args(IsolationName)), isolation_schema(get_args(IsolationName))),
    Spelled(lambda value: parse_isolation(value, get_args(IsolationName)), plain_isolation),
]
"""Isolations in the order of preference."""
ChosenTimeSlicedIsolation = Annotated[
    tuple[TimeSlicedIsolationName, ...],
    Allowed(isolation_allowed(get_args(TimeSlicedIsolationName)), isolation_schema(get_args(TimeSlicedIsolationName))),
    Spelled(lambda value: parse_isolation(value, get_args(TimeSlicedIsolationName)), plain_isolation),
]
"""Isolations of replicas that take turns, in the order of preference."""
ChosenMpsIsolation = Annotated[
    tuple[MpsIsolationName, ...],
    Allowed(isolation_allowed(get_args(MpsIsolationName)), isolation_schema(get_args(MpsIsolationName))),
    Spelled(lambda value: parse_isolation(value, get_args(MpsIsolationName)), plain_isolation),
]
"""Isolations under MPS, in the order of preference."""
ChosenBurst = Annotated[
    Burst,
    Allowed(BURST_ALLOWED, BURST_SCHEMA),
    Spelled(parse_burst, plain_burst),
    AfterValidator(_only_with_driver_limits),
]
"""How far a share may use free memory of its GPU."""
ChosenSliceCompute = Annotated[
    SliceCompute, Allowed(SLICE_COMPUTE_ALLOWED, SLICE_COMPUTE_SCHEMA), Spelled(parse_slice_compute)
]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Allowed("a number of seconds, more than 0")]
CardMemory = Annotated[MemoryUnit, Allowed(MemoryUnit.allowed, MEMORY_UNIT_SCHEMA), Spelled(parse_card_memory, str)]
"""The usable memory of a card."""
AddedMemory = Annotated[
    MemoryUnit,
    Allowed(MemoryUnit.allowed, MEMORY_UNIT_SCHEMA),
    Spelled(parse_added_memory, str),
]
"""Memory that is added to each share."""
MemoryByDefault = Annotated[
    MemoryUnit,
    Allowed(MemoryUnit.allowed, MEMORY_UNIT_SCHEMA),
    Spelled(parse_memory_by_default, str),
]
"""Memory that a claim gets that names no size."""
DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
_STRATEGY_SCHEMA: JsonSchema = {"enum": [*get_args(DeviceListStrategy)]}


class Section(BaseModel):
    """A section of the file: the keys are exactly the camelCase aliases, and other keys are rejected."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
    )

    @classmethod
    def may_be_empty(cls, setting: FieldInfo) -> bool:
        """Return whether the key of `setting` may be without a value."""
        return type(None) in get_args(setting.annotation)


class _Optional(Section):
    """A section in which a key without a value counts as left out; NVIDIA's plugin does the same."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    @classmethod
    def may_be_empty(cls, setting: FieldInfo) -> bool:  # noqa: ARG003 - true for every key
        """Return True."""
        return True


class PluginFlags(_Optional):
    """`flags.plugin`: the access of containers to allocated GPUs."""

    pass_device_specs: bool = Field(
        default=False,
        description="Also pass device nodes to the kubelet; the static CPU manager policy needs this.",
    )
    device_list_strategy: Annotated[
        tuple[DeviceListStrategy, ...],
        Allowed(
            "one of envvar, volume-mounts, cdi-annotations, cdi-cri, or a list of them",
            {"anyOf": [_STRATEGY_SCHEMA, {"type": "array", "minItems": 1, "items": _STRATEGY_SCHEMA}]},
        ),
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
        Field(strict=False, min_length=1),
    ] = Field(default=("envvar",), description="How containers get GPUs.")
    device_id_strategy: Literal["uuid", "index"] = Field(
        default="uuid",
        alias="deviceIDStrategy",
        description="Name of a GPU for the container runtime.",
    )
    cdi_annotation_prefix: Annotated[
        str,
        Allowed("the start of an annotation key", text_like(_ANNOTATION_PREFIX)),
        AfterValidator(_annotation_prefix),
    ] = Field(
        default="cdi.k8s.io/",
        description="Prefix of annotation keys for `cdi-annotations`.",
    )
    nvidia_ctk_path: AbsolutePath = Field(
        default="/usr/bin/nvidia-ctk",
        alias="nvidiaCTKPath",
        description="`nvidia-ctk` or `nvidia-cdi-hook` on the host, for gpushare's CDI specification.",
    )
    container_driver_root: AbsolutePath = Field(
        default=names.CONTAINER_DRIVER_ROOT,
        description="The host's driver root in this container.",
    )
    shared_devices_allocation_policy: ReplicaPolicyName = Field(
        default=DEFAULT_REPLICA_POLICY,
        description="GPU of the next replica: the least used, the most used, or that of which the container has least.",
    )
    cdi_kind: Annotated[str, Allowed("<vendor>/<class>", text_like(_CDI_KIND)), AfterValidator(_cdi_kind)] = Field(
        default="nvidia.com/gpu",
        description="CDI device names before `=`.",
    )

    @property
    def uses_cdi(self) -> bool:
        """Whether containers get their GPUs as CDI devices, perhaps beside other ways."""
        return not {"cdi-annotations", "cdi-cri"}.isdisjoint(self.device_list_strategy)


class FeatureDiscoveryFlags(_Optional):
    """`flags.gfd`: settings of NVIDIA's GPU feature discovery, which may use the same file; no effect on gpushare."""

    oneshot: bool | None = Field(default=None, description="Without effect.")
    no_timestamp: bool | None = Field(default=None, description="Without effect.")
    sleep_interval: Annotated[
        str | int | float | None,
        Allowed(_DURATION, {"type": ["string", "number"]}),
        Spelled(_duration),
    ] = Field(default=None, description="Without effect.")
    output_file: str | None = Field(default=None, description="Without effect.")
    machine_type_file: str | None = Field(default=None, description="Without effect.")


class Flags(_Optional):
    """`flags`: settings that are also command-line options."""

    mig_strategy: Literal["none", "single", "mixed"] = Field(
        default="none",
        description="MIG instances: not advertised, as whole GPUs, or by profile.",
    )
    fail_on_init_error: bool = Field(
        default=True,
        description="Exit if no GPU is found; if false, wait.",
    )
    mps_root: AbsolutePath = Field(
        default="/run/nvidia/mps",
        description="MPS directory on the host.",
    )
    mps_protocol: Annotated[MpsProtocol, Allowed("2, 3", {"enum": [2, 3]})] = Field(
        default=2,
        description="Protocol of the MPS control daemon; 3 is experimental, and needs driver 615.",
    )
    nvidia_driver_root: AbsolutePath = Field(
        default="/",
        description="Root of the driver on the host, such as `/run/nvidia/driver`.",
    )
    nvidia_dev_root: Annotated[
        AbsolutePath | None,
        Allowed("an absolute path", {"type": "string", "pattern": "^(/|$)"}),
        BeforeValidator(lambda value: None if value == "" else value),
    ] = Field(
        default=None,
        description="Root of device nodes on the host. Default: the driver root.",
    )
    gdrcopy_enabled: bool = Field(default=False, description="Add GDRCopy to containers with a GPU.")
    gds_enabled: bool = Field(default=False, description="Add GPUDirect Storage.")
    mofed_enabled: bool = Field(default=False, description="Add Mellanox OFED.")
    use_node_feature_api: bool | None = Field(
        default=None,
        alias="useNodeFeatureAPI",
        description="Without effect.",
    )
    device_discovery_strategy: Annotated[
        Literal["auto", "nvml", "tegra"],
        Allowed("auto, nvml", {"enum": ["auto", "nvml"]}),
        AfterValidator(_served_discovery),
    ] = Field(
        default="auto",
        description="GPUs are found by NVML alone.",
    )
    plugin: PluginFlags = Field(default_factory=PluginFlags, description="How containers get GPUs.")
    gfd: FeatureDiscoveryFlags | None = Field(
        default=None,
        description="GPU feature discovery of NVIDIA's plugin.",
    )


class _Matching(Section):
    """The common settings of entries for devices by a pattern."""

    pattern: Annotated[str, Field(min_length=1), Allowed("text, where * matches anything")] = Field(
        description="Product name or MIG profile; the first match wins.",
    )

    def matches(self, text: str) -> bool:
        """Return whether the whole of `text`, a product name or MIG profile, matches the pattern."""
        return re.fullmatch(".*".join(map(re.escape, self.pattern.split("*"))), text, re.DOTALL) is not None


class ResourcePattern(_Matching):
    """An entry of `resources.gpus` or `resources.migs`: the resource name of matching devices."""

    name: NvidiaName = Field(description="Advertised name; without a match, GPUs are `nvidia.com/gpu`.")


class GpuMemory(_Matching):
    """An entry of `unreportedMemory`: the memory of matching GPUs that do not report their memory."""

    pattern: Annotated[str, Field(min_length=1), Allowed("text, where * matches anything")] = Field(
        description="Product name, such as `NVIDIA GB10`; the first match wins.",
    )
    size: CardMemory = Field(
        description="Memory for all containers together, without what the host needs.",
    )


class Resources(_Optional):
    """`resources`: the resource names of whole devices."""

    gpus: Annotated[tuple[ResourcePattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Names of GPUs; without a match, `nvidia.com/gpu`.",
    )
    migs: Annotated[tuple[ResourcePattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Names of MIG instances, by profile; also spelled `mig`.",
    )


class ReplicatedResource(Section):
    """The common settings of entries of `sharing.timeSlicing.resources` and `sharing.mps.resources`."""

    name: Annotated[NvidiaName, AfterValidator(_shareable)] = Field(
        description="`nvidia.com/gpu`, a MIG resource, or a name of `resources`."
    )
    rename: NvidiaName | None = Field(default=None, description="Another name for replicas.")
    devices: ChosenDevices = Field(default=AllDevices(), description="Devices of this entry.")
    replicas: Annotated[int, Field(ge=2)] = Field(description="Replicas of each device.")


class TimeSlicedResource(ReplicatedResource):
    """An entry of `sharing.timeSlicing.resources`."""

    isolation: ChosenTimeSlicedIsolation = Field(
        default=("none",),
        description="Limit of a share, an equal part of memory: none, HAMi-core, or the driver's.",
    )
    burst: ChosenBurst | None = Field(default=None, description=_BURST)


class MpsResource(ReplicatedResource):
    """An entry of `sharing.mps.resources`: all replicas have equal shares, enforced by MPS."""

    replicas: Annotated[int, Field(ge=2, le=MOST_MPS_CLIENTS)] = Field(
        description="Replicas of each device; MPS serves 48 clients, before Volta 16."
    )
    isolation: ChosenMpsIsolation | None = Field(default=None, description=_MPS_ISOLATION)
    burst: ChosenBurst | None = Field(default=None, description=_BURST)


class ReplicatedResources(Section):
    """The common settings of `sharing.timeSlicing` and `sharing.mps`: devices allocated several times."""

    rename_by_default: bool = Field(
        default=False,
        description="Without `rename`, replicas are `<name>.shared`.",
    )
    fail_requests_greater_than_one: bool | None = Field(
        default=None,
        description="Reject requests for several replicas. Default: only under MPS.",
    )

    def advertised_name(self, resource: ReplicatedResource) -> str:
        """Return the name of the replicas of `resource`, an entry of this section."""
        if resource.rename is not None:
            return resource.rename
        return f"{resource.name}.shared" if self.rename_by_default else resource.name


class TimeSlicing(ReplicatedResources):
    """`sharing.timeSlicing`: devices shared by containers that take turns."""

    resources: Annotated[tuple[TimeSlicedResource, ...], Field(strict=False, min_length=1)] = Field(
        description="Resources to replicate.",
    )


class Slices(Section):
    """An entry of `sharing.mps.sizes[].slices`."""

    size: Annotated[
        Slice,
        Allowed(SLICE_SIZE_ALLOWED, SLICE_SIZE_SCHEMA),
        Spelled(parse_slice, lambda size: size.name),
    ] = Field(description="Size of a slice: 10gb is `nvidia.com/gpu-10gb`.")
    count: Annotated[int, Field(ge=1, le=MOST_MPS_CLIENTS)] = Field(
        default=1, description="Slices of this size on each GPU."
    )


class SizedDevices(Section):
    """An entry of `sharing.mps.sizes`: GPUs cut into slices of given sizes, as in nos."""

    devices: ChosenDevices = Field(default=AllDevices(), description="Devices of this entry.")
    slices: Annotated[tuple[Slices, ...], Field(strict=False, min_length=1)] = Field(
        description="Slices of each GPU; 10gb is advertised as `nvidia.com/gpu-10gb`.",
    )
    compute: ChosenSliceCompute = Field(
        default="proportional",
        description="Limit of compute: by size, equal for all slices (as with nos), none, or percent of the GPU.",
    )
    isolation: ChosenMpsIsolation | None = Field(default=None, description=_MPS_ISOLATION)
    burst: ChosenBurst | None = Field(default=None, description=_BURST)

    @field_validator("slices")
    @classmethod
    def _reject_twice(cls, slices: tuple[Slices, ...]) -> tuple[Slices, ...]:
        seen: set[Slice] = set()
        for each in slices:
            if each.size in seen:
                raise ValueError(f"found {each.size.name} twice; a size is listed once, with its count")
            seen.add(each.size)
        return slices


class Mps(ReplicatedResources):
    """`sharing.mps`: devices shared through CUDA MPS, which limits each container to its share."""

    resources: Annotated[tuple[MpsResource, ...], Field(strict=False)] = Field(
        default=(),
        description="Resources to replicate, in equal shares.",
    )
    sizes: Annotated[tuple[SizedDevices, ...], Field(strict=False)] = Field(
        default=(),
        description="GPUs divided into slices.",
    )


class MemoryResource(Section):
    """An entry of `sharing.memory.resources`: GPU memory allocated in units."""

    name: Annotated[str, Allowed(names.ALLOWED, text_like(names.PATTERN)), AfterValidator(names.memory_resource)] = (
        Field(
            description="Name of the units.",
        )
    )
    unit: Annotated[
        MemoryUnit,
        Allowed(MemoryUnit.allowed, MEMORY_UNIT_SCHEMA),
        Spelled(lambda value: value if isinstance(value, MemoryUnit) else MemoryUnit.parse(value), str),
    ] = Field(default=MemoryUnit(1024), validate_default=True, description="Memory of a unit.")
    devices: ChosenDevices = Field(default=AllDevices(), description="Devices of this entry.")
    placement: PolicyName = Field(
        default=DEFAULT_POLICY,
        description="GPU for a request: the fullest with enough units, the emptiest, or that where later requests "
        "lose least room.",
    )
    isolation: ChosenIsolation = Field(
        default=("none",),
        description="Limit of a share: none, MPS, HAMi-core, the driver's, or of both the driver and MPS. Of a list, "
        "the first that the node has.",
    )
    burst: ChosenBurst | None = Field(default=None, description=_BURST)
    compute: ChosenCompute = Field(
        default="proportional",
        description="Limit of compute: percent of the GPU, or in proportion to memory; needs MPS, `driver+mps` or "
        "HAMi-core. With `requested`, a GPU also offers 100 units of `aliyun.com/gpu-core.percentage`.",
    )
    allow_multi_gpu_shares: bool = Field(
        default=False,
        alias="allowMultiGPUShares",
        description="With `isolation: mps`, admit shares on several GPUs: MPS does not limit a process that sees "
        "fewer GPUs than its share has.",
    )
    framework_hints: bool = Field(
        default=False,
        description="Also set variables that limit memory of JAX, CuPy and TensorFlow.",
    )

    @field_validator("unit")
    @classmethod
    def _reject_another_meaning(cls, unit: MemoryUnit, info: ValidationInfo) -> MemoryUnit:
        name = info.data.get("name", "")
        if name in names.MEMORY_IN_MIB and unit.mib != 1:
            units = -(-_EXAMPLE_MIB // unit.mib)
            raise ValueError(
                f"found a unit of {unit}, but pods of {names.MEMORY_IN_MIB[name]} request {name} in MiB: a request of "
                f"{_EXAMPLE_MIB} would mean {_EXAMPLE_MIB} units of {unit}. Set unit: MiB, or advertise the units "
                f"under another name, such as {names.MEMORY}, and change the requests ({_EXAMPLE_MIB} MiB are {units} "
                f"units of {unit})"
            )
        return unit

    @field_validator("compute")
    @classmethod
    def _reject_compute_that_nothing_limits(cls, compute: Compute, info: ValidationInfo) -> Compute:
        isolation = info.data.get("isolation", ("mps",))
        if compute == "requested" and not limits_compute(isolation):
            raise ValueError(
                f"found requested, but isolation is {', '.join(isolation)}, which does not limit compute, so "
                f"{names.CORES} cannot be offered; set isolation to mps, driver+mps or hami-core, or leave compute out"
            )
        return compute

    @field_validator("allow_multi_gpu_shares")
    @classmethod
    def _reject_what_is_allowed_anyway(cls, allowed: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 - the value to check
        isolation = info.data.get("isolation", ("mps",))
        if allowed and "mps" not in isolation:
            raise ValueError(
                f"found true, but isolation is {', '.join(isolation)}, with which shares on several GPUs are always "
                "admitted; remove this key, or set isolation to mps"
            )
        return allowed


class MemoryResources(Section):
    """`sharing.memory`: GPUs shared by memory."""

    resources: Annotated[tuple[MemoryResource, ...], Field(strict=False, min_length=1)] = Field(
        description="Resources to advertise.",
    )


class Sharing(Section):
    """`sharing`: the ways of sharing; GPUs that no entry selects are advertised whole."""

    time_slicing: TimeSlicing | None = Field(default=None, description="Time slicing.")
    mps: Mps | None = Field(default=None, description="CUDA MPS.")
    memory: MemoryResources | None = Field(default=None, description="Sharing by memory.")

    @property
    def includes_driver(self) -> bool:
        """Whether an entry has the driver limit memory, at least on some nodes."""
        return any(map(includes_driver, self.isolations))

    @property
    def isolations(self) -> tuple[tuple[str, ...], ...]:
        """The isolations of each entry, in the order of preference."""
        return tuple(entry.isolation or ("mps",) for entry in self.entries)

    @property
    def includes_mps(self) -> bool:
        """Whether an entry shares GPUs through MPS, at least on some nodes."""
        return any(map(includes_mps, self.isolations))

    @property
    def bursts(self) -> bool:
        """Whether an entry lets its shares use more memory while that is free."""
        return any(entry.burst is not None for entry in self.entries)

    @property
    def entries(self) -> "Iterator[TimeSlicedResource | MpsResource | SizedDevices | MemoryResource]":
        """The entries of all ways of sharing."""
        if self.time_slicing:
            yield from self.time_slicing.resources
        if self.mps:
            yield from self.mps.resources
            yield from self.mps.sizes
        if self.memory:
            yield from self.memory.resources

    @field_validator("time_slicing", "mps", "memory", mode="before")
    @classmethod
    def _reject_nothing(cls, value: object) -> object:
        # The usual cause is a list without the indentation below the key. Ignoring the key would hide the mistake.
        if value is None:
            raise ValueError("found nothing; allowed: a section with resources, indented below this key")
        return value

    @classmethod
    def may_be_empty(cls, setting: FieldInfo) -> bool:  # noqa: ARG003 - false for every key
        """Return False."""
        return False


class Imex(_Optional):
    """`imex`: channels for GPUs on one fabric. Channels are not supported: a setting that requests one is rejected."""

    channel_ids: Annotated[
        tuple[int, ...],
        Allowed("[]", {"enum": [[]]}),
        Field(strict=False),
        AfterValidator(_channels),
    ] = Field(default=(), alias="channelIDs", description="Not supported.")
    required: Annotated[bool, Allowed("false", {"enum": [False]}), AfterValidator(_no_channel_required)] = Field(
        default=False, description="Not supported."
    )


class HamiCore(_Optional):
    """`hamiCore`: HAMi's preload library, which must be installed on the node."""

    library_directory: AbsolutePath = Field(
        default="/usr/local/vgpu",
        description="Host directory of `libvgpu.so` and `ld.so.preload`.",
    )


class DriverLimitSettings(_Optional):
    """`driverLimits`: the limits of memory that NVIDIA's driver enforces."""

    additional_memory: AddedMemory | None = Field(
        default=None,
        description="Memory added to each limit, for CUDA contexts. Default: none.",
    )


class Dra(Section):
    """`dra`: the GPUs that pods get by ResourceClaims, through a DRA driver, and not through the device plugin."""

    driver: Annotated[
        str, Allowed(names.DRA_DRIVER_ALLOWED, text_like(names.DRA_DRIVER_PATTERN)), AfterValidator(names.dra_driver)
    ] = Field(
        default=names.DRA_DRIVER,
        description="Name of the DRA driver, the same on all nodes.",
    )
    default: MemoryByDefault | None = Field(
        default=None,
        description="Memory of a GPU shared by memory for a claim without a size, rounded up to units. Default: all.",
    )
    devices: ChosenDevices = Field(
        default=AllDevices(),
        description="GPUs given by claim; none without the section `dra`. The device plugin offers the others. Index "
        "of a MIG instance: 0:1.",
    )


class Health(Section):
    """`health`: the errors that make a GPU unhealthy, and the conditions under which a GPU is healthy again."""

    ignored_xids: ChosenXids = Field(
        default=(),
        description=f"XIDs to ignore beside those of applications: {', '.join(map(str, sorted(APPLICATION_XIDS)))}.",
    )
    watched_xids: ChosenXids = Field(
        default=(),
        description="XIDs that make a GPU unhealthy, whatever is ignored.",
    )
    reset_xids: Annotated[
        tuple[Annotated[Xid, Allowed(XID_ALLOWED, XID_SCHEMA)], ...], Allowed("a list of XIDs"), Field(strict=False)
    ] = Field(
        default=tuple(sorted(RESET_XIDS)),
        description="XIDs that leave a GPU unhealthy until its reset.",
    )
    good_probes: Annotated[int, Field(ge=1)] = Field(
        default=3,
        description="Successful probes in a row that make a GPU healthy again.",
    )
    probe_seconds: Seconds = Field(default=5.0, description="Interval between probes while a GPU is unhealthy.")
    rescan_seconds: Seconds = Field(default=30.0, description="Interval between scans of all GPUs otherwise.")

    def policy(self) -> XidPolicy:
        """Return the meaning of each XID for a GPU."""
        return XidPolicy(
            ignored=None if self.ignored_xids == "all" else APPLICATION_XIDS | frozenset(self.ignored_xids),
            watched=None if self.watched_xids == "all" else frozenset(self.watched_xids),
            until_reset=frozenset(self.reset_xids),
        )


class Overuse(Section):
    """`overuse`: the action against pods that use more memory of a GPU than their units allow."""

    action: Literal["report", "evict"] = Field(
        default="report",
        description="Report the pod, or also evict: that needs the right to create `pods/eviction`.",
    )
    grace_seconds: Seconds = Field(default=60.0, description="Time over the limit before eviction.")


class Partitioning(Section):
    """`partitioning`: the permission to divide GPUs in another way while pods run."""

    mig_mode: Literal["keep", "manage"] = Field(
        default="keep",
        description="With `manage`, `gpushare mig` may switch MIG mode on for unused GPUs, and never off.",
    )


class Config(_Optional):
    """The config of a node."""

    version: Literal["v1"] = Field(default="v1", description="Version of the schema.")
    flags: Flags = Field(default_factory=Flags, description="Settings that are also options.")
    resources: Resources = Field(default_factory=Resources, description="Names of whole devices.")
    sharing: Sharing = Field(default_factory=Sharing, description="Ways of sharing.")
    imex: Imex = Field(default_factory=Imex, description="Not supported.")
    unreported_memory: Annotated[tuple[GpuMemory, ...], Field(strict=False)] = Field(
        default=(),
        description="Memory of GPUs that report none, such as GB10; without an entry, these are offered whole or "
        "time-sliced only.",
    )
    hami_core: HamiCore = Field(default_factory=HamiCore, description="HAMi-core.")
    driver_limits: DriverLimitSettings | None = Field(default=None, description="Memory limits of NVIDIA's driver.")
    dra: Dra | None = Field(default=None, description="GPUs given by ResourceClaims. Default: none.")
    overuse: Overuse = Field(default_factory=Overuse, description="Pods that use more memory than they hold.")
    health: Health = Field(default_factory=Health, description="When a GPU is unhealthy.")
    partitioning: Partitioning = Field(default_factory=Partitioning, description="How far GPUs are divided anew.")
