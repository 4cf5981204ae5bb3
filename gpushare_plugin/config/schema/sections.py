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
    "How much memory a container may use while it is free: a multiple of the share, or a size. Needs the driver as "
    "isolation, and the agent `gpushare driver-limits`. Default: no more than the share."
)
_MPS_ISOLATION = (
    "What limits a container to its share: MPS, or both NVIDIA's driver and MPS (`driver` means the same here). Of a "
    "list, the first that the node has. Default: MPS."
)
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
        description="Also pass the device nodes to the kubelet; needed with the static CPU manager policy.",
    )
    device_list_strategy: Annotated[
        tuple[DeviceListStrategy, ...],
        Allowed(
            "one of envvar, volume-mounts, cdi-annotations, cdi-cri, or a list of them",
            {"anyOf": [_STRATEGY_SCHEMA, {"type": "array", "minItems": 1, "items": _STRATEGY_SCHEMA}]},
        ),
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
        Field(strict=False, min_length=1),
    ] = Field(default=("envvar",), description="How GPUs are passed to the container runtime.")
    device_id_strategy: Literal["uuid", "index"] = Field(
        default="uuid",
        alias="deviceIDStrategy",
        description="Identify GPUs to the container runtime by UUID or by index.",
    )
    cdi_annotation_prefix: Annotated[
        str,
        Allowed("the start of an annotation key", text_like(_ANNOTATION_PREFIX)),
        AfterValidator(_annotation_prefix),
    ] = Field(
        default="cdi.k8s.io/",
        description="Prefix of the annotation keys that `cdi-annotations` writes.",
    )
    nvidia_ctk_path: AbsolutePath = Field(
        default="/usr/bin/nvidia-ctk",
        alias="nvidiaCTKPath",
        description="Path of `nvidia-ctk` or `nvidia-cdi-hook` on the host, for the CDI specification of gpushare.",
    )
    container_driver_root: AbsolutePath = Field(
        default=names.CONTAINER_DRIVER_ROOT,
        description="Where the host's driver root is mounted in this container.",
    )
    shared_devices_allocation_policy: ReplicaPolicyName = Field(
        default=DEFAULT_REPLICA_POLICY,
        description="Which GPU the next replica comes from: the least used, the most used, or the one of which the "
        "container has least.",
    )
    cdi_kind: Annotated[str, Allowed("<vendor>/<class>", text_like(_CDI_KIND)), AfterValidator(_cdi_kind)] = Field(
        default="nvidia.com/gpu",
        description="Kind of the CDI device names, the part before `=`.",
    )

    @property
    def uses_cdi(self) -> bool:
        """Whether containers get their GPUs as CDI devices, perhaps beside other ways."""
        return not {"cdi-annotations", "cdi-cri"}.isdisjoint(self.device_list_strategy)


class FeatureDiscoveryFlags(_Optional):
    """`flags.gfd`: settings of NVIDIA's GPU feature discovery, which may use the same file; no effect on gpushare."""

    oneshot: bool | None = Field(default=None, description="Label once and exit.")
    no_timestamp: bool | None = Field(default=None, description="Leave the timestamp label out.")
    sleep_interval: Annotated[
        str | int | float | None,
        Allowed(_DURATION, {"type": ["string", "number"]}),
        Spelled(_duration),
    ] = Field(default=None, description="Interval between labelings.")
    output_file: str | None = Field(default=None, description="File the labels are written to.")
    machine_type_file: str | None = Field(default=None, description="File with the machine type.")


class Flags(_Optional):
    """`flags`: settings that are also command-line options."""

    mig_strategy: Literal["none", "single", "mixed"] = Field(
        default="none",
        description="How MIG instances are advertised: not at all, as whole GPUs, or by profile.",
    )
    fail_on_init_error: bool = Field(
        default=True,
        description="Exit if no GPU is found; if false, wait for one, so that nodes without GPUs can run the daemon.",
    )
    mps_root: AbsolutePath = Field(
        default="/run/nvidia/mps",
        description="MPS directory on the host: pipes in `pipe`, logs in `log`, shared memory in `shm`.",
    )
    mps_protocol: Annotated[MpsProtocol, Allowed("2, 3", {"enum": [2, 3]})] = Field(
        default=2,
        description="Protocol of the MPS control daemon. With 3, which needs driver 615 and is experimental, the MPS "
        "server itself holds each container to its limits, also on several GPUs.",
    )
    nvidia_driver_root: AbsolutePath = Field(
        default="/",
        description="Root of the driver installation on the host, such as `/run/nvidia/driver`.",
    )
    nvidia_dev_root: Annotated[
        AbsolutePath | None,
        Allowed("an absolute path", {"type": "string", "pattern": "^(/|$)"}),
        BeforeValidator(lambda value: None if value == "" else value),
    ] = Field(
        default=None,
        description="Root of the device nodes on the host. Default: the driver root.",
    )
    gdrcopy_enabled: bool = Field(default=False, description="Add GDRCopy to containers that get a GPU.")
    gds_enabled: bool = Field(default=False, description="Add GPUDirect Storage to containers that get a GPU.")
    mofed_enabled: bool = Field(default=False, description="Add Mellanox OFED to containers that get a GPU.")
    use_node_feature_api: bool | None = Field(
        default=None,
        alias="useNodeFeatureAPI",
        description="Setting of GPU feature discovery; accepted, without effect.",
    )
    device_discovery_strategy: Annotated[
        Literal["auto", "nvml", "tegra"],
        Allowed("auto, nvml", {"enum": ["auto", "nvml"]}),
        AfterValidator(_served_discovery),
    ] = Field(
        default="auto",
        description="How GPUs are found; only NVML is supported, `tegra` is rejected.",
    )
    plugin: PluginFlags = Field(default_factory=PluginFlags, description="How containers get access to allocated GPUs.")
    gfd: FeatureDiscoveryFlags | None = Field(
        default=None,
        description="Settings of GPU feature discovery; accepted, without effect.",
    )


class _Matching(Section):
    """The common settings of entries for devices by a pattern."""

    pattern: Annotated[str, Field(min_length=1), Allowed("text, where * matches anything")] = Field(
        description="Product name of the GPU, or MIG profile; `*` matches anything, the first match wins.",
    )

    def matches(self, text: str) -> bool:
        """Return whether the whole of `text`, a product name or MIG profile, matches the pattern."""
        return re.fullmatch(".*".join(map(re.escape, self.pattern.split("*"))), text, re.DOTALL) is not None


class ResourcePattern(_Matching):
    """An entry of `resources.gpus` or `resources.migs`: the resource name of matching devices."""

    name: NvidiaName = Field(description="Name that matching devices are advertised under.")


class GpuMemory(_Matching):
    """An entry of `unreportedMemory`: the memory of matching GPUs that do not report their memory."""

    pattern: Annotated[str, Field(min_length=1), Allowed("text, where * matches anything")] = Field(
        description="Product name of the GPU, such as `NVIDIA GB10`; `*` matches anything, the first match wins.",
    )
    size: CardMemory = Field(
        description="Memory of the GPU that containers may use together; of a GPU that uses the memory of the host, "
        "what the host does not need.",
    )


class Resources(_Optional):
    """`resources`: the resource names of whole devices."""

    gpus: Annotated[tuple[ResourcePattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Names for GPUs; a GPU that matches no pattern is `nvidia.com/gpu`.",
    )
    migs: Annotated[tuple[ResourcePattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Names for MIG instances, by profile; the key may also be spelled `mig`.",
    )


class ReplicatedResource(Section):
    """The common settings of entries of `sharing.timeSlicing.resources` and `sharing.mps.resources`."""

    name: Annotated[NvidiaName, AfterValidator(_shareable)] = Field(
        description="Resource to replicate: `nvidia.com/gpu`, a MIG resource, or one of `resources`."
    )
    rename: NvidiaName | None = Field(default=None, description="Name of the replicas, if different.")
    devices: ChosenDevices = Field(default=AllDevices(), description="Devices of the resource to replicate.")
    replicas: Annotated[int, Field(ge=2)] = Field(
        description="How many containers can use one device at the same time."
    )


class TimeSlicedResource(ReplicatedResource):
    """An entry of `sharing.timeSlicing.resources`."""

    isolation: ChosenTimeSlicedIsolation = Field(
        default=("none",),
        description="What limits a container to its share: nothing, or HAMi-core or NVIDIA's driver, which give each "
        "an equal part of the memory. Of a list, the first that the node has.",
    )
    burst: ChosenBurst | None = Field(default=None, description=_BURST)


class MpsResource(ReplicatedResource):
    """An entry of `sharing.mps.resources`: all replicas have equal shares, enforced by MPS."""

    replicas: Annotated[int, Field(ge=2, le=MOST_MPS_CLIENTS)] = Field(
        description="How many containers can use one device at the same time; MPS serves 48 clients, before Volta 16."
    )
    isolation: ChosenMpsIsolation | None = Field(default=None, description=_MPS_ISOLATION)
    burst: ChosenBurst | None = Field(default=None, description=_BURST)


class ReplicatedResources(Section):
    """The common settings of `sharing.timeSlicing` and `sharing.mps`: devices allocated several times."""

    rename_by_default: bool = Field(
        default=False,
        description="Advertise replicas as `<name>.shared` if the entry has no `rename`.",
    )
    fail_requests_greater_than_one: bool | None = Field(
        default=None,
        description="Reject containers that request several replicas. Default: true for MPS, false for time slicing.",
    )

    def advertised_name(self, resource: ReplicatedResource) -> str:
        """Return the name of the replicas of `resource`, an entry of this section."""
        if resource.rename is not None:
            return resource.rename
        return f"{resource.name}.shared" if self.rename_by_default else resource.name


class TimeSlicing(ReplicatedResources):
    """`sharing.timeSlicing`: devices shared by containers that take turns."""

    resources: Annotated[tuple[TimeSlicedResource, ...], Field(strict=False, min_length=1)] = Field(
        description="Resources to replicate, and how often.",
    )


class Slices(Section):
    """An entry of `sharing.mps.sizes[].slices`."""

    size: Annotated[
        Slice,
        Allowed(SLICE_SIZE_ALLOWED, SLICE_SIZE_SCHEMA),
        Spelled(parse_slice, lambda size: size.name),
    ] = Field(description="Size of the slices; a GPU's size is its usable memory rounded up to whole GiB.")
    count: Annotated[int, Field(ge=1, le=MOST_MPS_CLIENTS)] = Field(
        default=1, description="How many slices of this size each GPU has."
    )


class SizedDevices(Section):
    """An entry of `sharing.mps.sizes`: GPUs cut into slices of given sizes, as in nos."""

    devices: ChosenDevices = Field(default=AllDevices(), description="GPUs to divide into these slices.")
    slices: Annotated[tuple[Slices, ...], Field(strict=False, min_length=1)] = Field(
        description="Slices of each of these GPUs; slices of 10gb are advertised as `nvidia.com/gpu-10gb`.",
    )
    compute: ChosenSliceCompute = Field(
        default="proportional",
        description="Limit of a slice's compute: in proportion to its size, equal for all slices of a GPU as with nos, "
        "none, or in percent of the GPU.",
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
        description="Resources to replicate, and how often; the replicas of a device have equal shares.",
    )
    sizes: Annotated[tuple[SizedDevices, ...], Field(strict=False)] = Field(
        default=(),
        description="GPUs divided into slices of given sizes.",
    )


class MemoryResource(Section):
    """An entry of `sharing.memory.resources`: GPU memory allocated in units."""

    name: Annotated[str, Allowed(names.ALLOWED, text_like(names.PATTERN)), AfterValidator(names.memory_resource)] = (
        Field(
            description="Resource name of the units.",
        )
    )
    unit: Annotated[
        MemoryUnit,
        Allowed(MemoryUnit.allowed, MEMORY_UNIT_SCHEMA),
        Spelled(lambda value: value if isinstance(value, MemoryUnit) else MemoryUnit.parse(value), str),
    ] = Field(default=MemoryUnit(1024), validate_default=True, description="Amount of memory of one unit.")
    devices: ChosenDevices = Field(default=AllDevices(), description="GPUs to share by memory.")
    placement: PolicyName = Field(
        default=DEFAULT_POLICY,
        description="GPU that a request is placed on: of those with enough free units, the fullest, the emptiest, or "
        "the one where the least room for later requests is lost.",
    )
    isolation: ChosenIsolation = Field(
        default=("none",),
        description="What limits a container to its units: nothing, CUDA MPS, HAMi-core, NVIDIA's driver, or both the "
        "driver and MPS. Of a list, the first that the node has.",
    )
    burst: ChosenBurst | None = Field(default=None, description=_BURST)
    compute: ChosenCompute = Field(
        default="proportional",
        description="Limit of a container's compute, in percent of the GPU or in proportion to its memory; needs "
        "MPS or HAMi-core as isolation, `driver+mps` included. With `requested`, the GPUs also offer 100 units each of "
        "`aliyun.com/gpu-core.percentage`, and containers request their percentage.",
    )
    allow_multi_gpu_shares: bool = Field(
        default=False,
        alias="allowMultiGPUShares",
        description="With `isolation: mps`, also admit pods with a share on several GPUs. Without it they are refused: "
        "MPS does not limit a process that sees fewer GPUs than its share has.",
    )
    framework_hints: bool = Field(
        default=False,
        description="Also set the environment variables that limit the memory of JAX, CuPy and TensorFlow.",
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
        description="Resources to advertise, with their unit and GPUs.",
    )


class Sharing(Section):
    """`sharing`: the ways of sharing; GPUs that no entry selects are advertised whole."""

    time_slicing: TimeSlicing | None = Field(default=None, description="GPUs shared by time slicing.")
    mps: Mps | None = Field(default=None, description="GPUs shared through CUDA MPS.")
    memory: MemoryResources | None = Field(default=None, description="GPUs shared by memory.")

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
    ] = Field(default=(), alias="channelIDs", description="Channels to add to containers; not supported, so none.")
    required: Annotated[bool, Allowed("false", {"enum": [False]}), AfterValidator(_no_channel_required)] = Field(
        default=False, description="Whether a missing channel is an error; not supported."
    )


class HamiCore(_Optional):
    """`hamiCore`: HAMi's preload library, which must be installed on the node."""

    library_directory: AbsolutePath = Field(
        default="/usr/local/vgpu",
        description="Host directory of `libvgpu.so` and of the `ld.so.preload` that names it.",
    )


class DriverLimitSettings(_Optional):
    """`driverLimits`: the limits of memory that NVIDIA's driver enforces."""

    additional_memory: AddedMemory | None = Field(
        default=None,
        description="Memory that is added to the limit of each share, for the CUDA contexts of its processes, which "
        "count for the limit. Default: none.",
    )


class Dra(Section):
    """`dra`: the GPUs that pods get by ResourceClaims, through a DRA driver, and not through the device plugin."""

    driver: Annotated[
        str, Allowed(names.DRA_DRIVER_ALLOWED, text_like(names.DRA_DRIVER_PATTERN)), AfterValidator(names.dra_driver)
    ] = Field(
        default=names.DRA_DRIVER,
        description="Name of the DRA driver, the same on all nodes of a cluster. Another name takes effect on a node "
        "when all claims under the name before have ended there.",
    )
    default: MemoryByDefault | None = Field(
        default=None,
        description="Memory that a claim gets of a GPU shared by memory if the claim asks for no size, rounded up to "
        "units. Default: all of it.",
    )
    devices: ChosenDevices = Field(
        default=AllDevices(),
        description="GPUs that are given by claim; the device plugin offers the other GPUs. The index of a MIG "
        "instance is written as in 0:1. How each GPU is shared is in `sharing`.",
    )


class Health(Section):
    """`health`: the errors that make a GPU unhealthy, and the conditions under which a GPU is healthy again."""

    ignored_xids: ChosenXids = Field(
        default=(),
        description="XIDs to ignore, in addition to those of applications: "
        f"{', '.join(map(str, sorted(APPLICATION_XIDS)))}.",
    )
    watched_xids: ChosenXids = Field(
        default=(),
        description="XIDs that make a GPU unhealthy, even ignored ones and those of applications.",
    )
    reset_xids: Annotated[
        tuple[Annotated[Xid, Allowed(XID_ALLOWED, XID_SCHEMA)], ...], Allowed("a list of XIDs"), Field(strict=False)
    ] = Field(
        default=tuple(sorted(RESET_XIDS)),
        description="XIDs after which a GPU stays unhealthy until it is reset.",
    )
    good_probes: Annotated[int, Field(ge=1)] = Field(
        default=3,
        description="Successful probes in a row after which a GPU is healthy again.",
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
        description="Report the pod in log and metrics, or also evict it; the latter needs the right to create "
        "`pods/eviction`.",
    )
    grace_seconds: Seconds = Field(default=60.0, description="How long a pod may use too much before it is evicted.")


class Partitioning(Section):
    """`partitioning`: the permission to divide GPUs in another way while pods run."""

    mig_mode: Literal["keep", "manage"] = Field(
        default="keep",
        description="Whether MIG mode stays as it is, or `gpushare mig` may switch it on for GPUs that nothing uses. "
        "It is never switched off again.",
    )


class Config(_Optional):
    """The config of a node."""

    version: Literal["v1"] = Field(default="v1", description="Version of the schema.")
    flags: Flags = Field(default_factory=Flags, description="Settings that are also command-line options.")
    resources: Resources = Field(default_factory=Resources, description="Resource names of whole devices.")
    sharing: Sharing = Field(default_factory=Sharing, description="The ways of sharing GPUs.")
    imex: Imex = Field(default_factory=Imex, description="Channels for GPUs on one fabric.")
    unreported_memory: Annotated[tuple[GpuMemory, ...], Field(strict=False)] = Field(
        default=(),
        description="Memory of GPUs that do not report it, such as GB10; without an entry, they are offered whole or "
        "time-sliced only. GPUs that report their memory are not concerned.",
    )
    hami_core: HamiCore = Field(default_factory=HamiCore, description="Location of the HAMi-core library.")
    driver_limits: DriverLimitSettings | None = Field(
        default=None, description="The limits of memory that NVIDIA's driver enforces."
    )
    dra: Dra | None = Field(
        default=None, description="GPUs that pods get by ResourceClaims. Default: all through the device plugin."
    )
    overuse: Overuse = Field(
        default_factory=Overuse, description="What happens to pods that use more memory than they hold."
    )
    health: Health = Field(default_factory=Health, description="When a GPU becomes unhealthy, and when healthy again.")
    partitioning: Partitioning = Field(
        default_factory=Partitioning, description="How far GPUs are divided in another way while pods run."
    )
