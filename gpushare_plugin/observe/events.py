"""All Kubernetes Events of gpushare: reason, type, meaning, and remedy.

`node/news/events.py` chooses the Event for a piece of news.
"""

from typing import Literal

from gpushare_plugin.base.structs import Struct


class EventKind(Struct, frozen=True):
    """A kind of Kubernetes Event."""

    reason: str
    """The reason in the Event."""
    type: Literal["Normal", "Warning"]
    """The type in the Event."""
    about: Literal["Node", "Pod", "Pod or Node"]
    """The kind of object that the Event regards."""
    action: str
    """The action in the Event."""
    meaning: str
    """The meaning of the Event, for people, in `docs/events.md`."""
    remedy: str = ""
    """The remedy, for people, in `docs/events.md`; empty where nothing has to be done."""


NO_GPU = EventKind(
    "NoGpu",
    "Warning",
    "Node",
    "LookForGpus",
    "The node has no usable GPU.",
    "Check `nvidia-smi`, and set `runtimeClassName`.",
)
GPU_LEFT_OUT = EventKind(
    "GpuLeftOut",
    "Warning",
    "Node",
    "LookForGpus",
    "A GPU is not offered, because it never worked.",
    "See the message and `nvidia-smi`.",
)
GPU_UNHEALTHY = EventKind(
    "GpuUnhealthy",
    "Warning",
    "Node",
    "CheckGpu",
    "New pods do not get a GPU with a fault.",
    "If the message asks for a reset: drain the node and reset the GPU.",
)
GPU_HEALTHY = EventKind("GpuHealthy", "Normal", "Node", "CheckGpu", "The fault is over.")
GPU_CORDONED = EventKind(
    "GpuCordoned", "Normal", "Node", "CordonGpu", "An annotation or ConfigMap closes a GPU for new pods."
)
GPU_UNCORDONED = EventKind("GpuUncordoned", "Normal", "Node", "CordonGpu", "The GPU is open again.")
CONFIG_APPLIED = EventKind("ConfigApplied", "Normal", "Node", "LoadConfig", "Another config is in effect.")
CONFIG_REJECTED = EventKind(
    "ConfigRejected",
    "Warning",
    "Node",
    "LoadConfig",
    "A config has mistakes; the previous config stays.",
    "`gpushare check-config` finds all mistakes.",
)
CONFIG_UNREADABLE = EventKind(
    "ConfigUnreadable",
    "Warning",
    "Node",
    "LoadConfig",
    "The config cannot be read; the previous config stays.",
    "Check the file or ConfigMap.",
)
CONFIG_VALID = EventKind("ConfigValid", "Normal", "Node", "LoadConfig", "The config is valid again.")
CONFIG_UNFIT = EventKind(
    "ConfigDoesNotFitGpus",
    "Warning",
    "Node",
    "LoadConfig",
    "The config no longer fits changed GPUs; GPUs stay shared.",
    "Change the config, or repair the GPUs.",
)
SHARING_MODE_PENDING = EventKind(
    "SharingModePending",
    "Normal",
    "Node",
    "ChangeSharingMode",
    "Pods hold units of the previous mode.",
    "Wait, or delete the pods.",
)
SHARING_MODE_CHANGED = EventKind(
    "SharingModeChanged", "Normal", "Node", "ChangeSharingMode", "The GPU is shared as configured."
)
ISOLATION_NOT_FIRST = EventKind(
    "IsolationNotFirst",
    "Warning",
    "Node",
    "ChooseIsolation",
    "The node uses another isolation than the first of the config; with `none`, no limit.",
    "Mend the node, or change its config.",
)
MPS_NOT_SERVING = EventKind(
    "MpsNotServing",
    "Warning",
    "Node",
    "ServeMps",
    "New pods do not get a GPU. Normal shortly after a start.",
    "Set `mps.enabled`, or read the log of `gpushare mps`.",
)
MPS_SERVING = EventKind("MpsServing", "Normal", "Node", "ServeMps", "MPS serves, or is no longer wanted.")
DRIVER_LIMITS_NOT_SET = EventKind(
    "DriverLimitsNotSet",
    "Warning",
    "Node",
    "SetDriverLimits",
    "New pods do not get a GPU. Normal shortly after a start.",
    "Set `driverLimits.enabled`, or read the log of `gpushare driver-limits`.",
)
DRIVER_LIMITS_SET = EventKind(
    "DriverLimitsSet", "Normal", "Node", "SetDriverLimits", "Driver limits work, or are no longer wanted."
)
GPUS_GIVEN_BY_CLAIM = EventKind(
    "GpusGivenByClaim",
    "Normal",
    "Node",
    "HandOver",
    "The device plugin does not offer the GPUs.",
)
GPUS_LEFT_CLAIMS = EventKind("GpusLeftClaims", "Normal", "Node", "HandOver", "The config decides who offers the GPUs.")
GPUS_NOT_OFFERED_TO_CLAIMS = EventKind(
    "GpusNotOfferedToClaims",
    "Warning",
    "Node",
    "PublishResourceSlices",
    "ResourceSlices lack GPUs; pods with claims wait.",
    "See the message.",
)
GPUS_OFFERED_TO_CLAIMS = EventKind(
    "GpusOfferedToClaims",
    "Normal",
    "Node",
    "PublishResourceSlices",
    "ResourceSlices have all GPUs.",
)
ALLOCATION_REFUSED = EventKind(
    "AllocationRefused",
    "Warning",
    "Node",
    "Allocate",
    "The pod fails or does not start.",
    "Use the scheduler extender, which places pods where they fit.",
)
GPU_MEMORY_EXCEEDED = EventKind(
    "GpuMemoryExceeded",
    "Warning",
    "Pod",
    "CheckUsage",
    "A container uses more GPU memory than allowed.",
    "Request more, or enforce the limit by an isolation.",
)
GPU_MEMORY_WITHIN_LIMIT = EventKind(
    "GpuMemoryWithinLimit", "Normal", "Pod", "CheckUsage", "The container keeps its limit again."
)
LIMIT_NOT_IN_EFFECT = EventKind(
    "GpuLimitNotInEffect",
    "Warning",
    "Pod",
    "CheckLimit",
    "A promised limit of GPU memory is not enforced.",
    "Remove variables that the message names from pod, image and program.",
)
LIMIT_IN_EFFECT = EventKind("GpuLimitInEffect", "Normal", "Pod", "CheckLimit", "The limit is enforced now.")
GPU_MEMORY_EVICTED = EventKind(
    "EvictedForGpuMemory",
    "Warning",
    "Pod",
    "Evict",
    "The pod used more GPU memory than allowed.",
    "Request more.",
)
EVICTION_REFUSED = EventKind(
    "GpuMemoryEvictionRefused",
    "Warning",
    "Pod",
    "Evict",
    "The pod cannot be evicted.",
    "See the message.",
)
FOREIGN_PROCESS = EventKind(
    "ForeignGpuProcess",
    "Warning",
    "Pod or Node",
    "CheckUsage",
    "A process uses a GPU without units or claim. The Event is on the Node if no pod has the process.",
    "Remove `NVIDIA_VISIBLE_DEVICES` from the pod, or end the program.",
)
SLICE_BEING_MADE = EventKind("SliceBeingMade", "Normal", "Pod", "MakeSlice", "A slice is made or kept for the pod.")
SLICE_NOT_MADE = EventKind(
    "SliceNotMade",
    "Warning",
    "Pod",
    "MakeSlice",
    "No node can make the slice, or the API server refuses the decision.",
    "Wait, ask for a smaller slice, or label more nodes.",
)
SLICE_TAKEN_BACK = EventKind(
    "SliceTakenBack",
    "Warning",
    "Pod",
    "MakeSlice",
    "The pod did not take its slice in time.",
    "On repeats, see the Events of the scheduler.",
)

OF_DAEMON = (
    NO_GPU,
    GPU_LEFT_OUT,
    GPU_UNHEALTHY,
    GPU_HEALTHY,
    GPU_CORDONED,
    GPU_UNCORDONED,
    CONFIG_APPLIED,
    CONFIG_REJECTED,
    CONFIG_UNREADABLE,
    CONFIG_VALID,
    CONFIG_UNFIT,
    SHARING_MODE_PENDING,
    SHARING_MODE_CHANGED,
    ISOLATION_NOT_FIRST,
    MPS_NOT_SERVING,
    MPS_SERVING,
    DRIVER_LIMITS_NOT_SET,
    DRIVER_LIMITS_SET,
    GPUS_GIVEN_BY_CLAIM,
    GPUS_LEFT_CLAIMS,
    GPUS_NOT_OFFERED_TO_CLAIMS,
    GPUS_OFFERED_TO_CLAIMS,
    ALLOCATION_REFUSED,
    GPU_MEMORY_EXCEEDED,
    GPU_MEMORY_WITHIN_LIMIT,
    GPU_MEMORY_EVICTED,
    EVICTION_REFUSED,
    LIMIT_NOT_IN_EFFECT,
    LIMIT_IN_EFFECT,
    FOREIGN_PROCESS,
)
"""The Events of the daemon of a node."""

OF_PARTITIONER = (
    SLICE_BEING_MADE,
    SLICE_NOT_MADE,
    SLICE_TAKEN_BACK,
)
"""The Events of the partitioner."""

EVENTS = (*OF_DAEMON, *OF_PARTITIONER)
"""All Events, in the order of `docs/events.md`."""
