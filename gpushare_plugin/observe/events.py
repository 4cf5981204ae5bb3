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
    "The node has no usable GPU; the daemon keeps looking.",
    "If the node has GPUs, check that `nvidia-smi` works on it, and set `runtimeClassName`.",
)
GPU_LEFT_OUT = EventKind(
    "GpuLeftOut",
    "Warning",
    "Node",
    "LookForGpus",
    "A GPU could never be used and is not offered; other GPUs are.",
    "See the reason in the message; `nvidia-smi` on the node shows more.",
)
GPU_UNHEALTHY = EventKind(
    "GpuUnhealthy",
    "Warning",
    "Node",
    "CheckGpu",
    "A GPU has a fault. New pods do not get it; running pods continue.",
    "If the message says that it needs a reset: drain the node and reset the GPU, or reboot.",
)
GPU_HEALTHY = EventKind(
    "GpuHealthy", "Normal", "Node", "CheckGpu", "The fault of a GPU is over, and new pods get it again."
)
GPU_CORDONED = EventKind(
    "GpuCordoned",
    "Normal",
    "Node",
    "CordonGpu",
    "An annotation or a ConfigMap cordons a GPU. New pods do not get it; running pods continue.",
)
GPU_UNCORDONED = EventKind("GpuUncordoned", "Normal", "Node", "CordonGpu", "A GPU is no longer cordoned.")
CONFIG_APPLIED = EventKind(
    "ConfigApplied", "Normal", "Node", "LoadConfig", "Another config is in effect; the message has what changed."
)
CONFIG_REJECTED = EventKind(
    "ConfigRejected",
    "Warning",
    "Node",
    "LoadConfig",
    "A config has mistakes. The previous one stays in effect; at the start, the one without the node label.",
    "Correct what the message names; `gpushare check-config` finds all mistakes before.",
)
CONFIG_UNREADABLE = EventKind(
    "ConfigUnreadable",
    "Warning",
    "Node",
    "LoadConfig",
    "The config cannot be read. The previous one stays in effect.",
    "See whether the file or the ConfigMap is there.",
)
CONFIG_VALID = EventKind(
    "ConfigValid",
    "Normal",
    "Node",
    "LoadConfig",
    "After one that was rejected or could not be read, the config is valid again.",
)
CONFIG_UNFIT = EventKind(
    "ConfigDoesNotFitGpus",
    "Warning",
    "Node",
    "LoadConfig",
    "GPUs were added or removed, and the config does not fit those that are present. They stay shared as before.",
    "Change the config, or repair the GPUs that are missing.",
)
SHARING_MODE_PENDING = EventKind(
    "SharingModePending",
    "Normal",
    "Node",
    "ChangeSharingMode",
    "A GPU is not shared as configured yet, because pods hold units of its previous mode.",
    "Wait, or delete the pods that the message names.",
)
SHARING_MODE_CHANGED = EventKind(
    "SharingModeChanged", "Normal", "Node", "ChangeSharingMode", "A GPU that waited is shared as configured now."
)
ISOLATION_NOT_FIRST = EventKind(
    "IsolationNotFirst",
    "Warning",
    "Node",
    "ChooseIsolation",
    "The node lacks the first isolation that the config lists for a GPU, and uses another one of the list. With "
    "`none`, nothing limits new containers.",
    "See the reason in the message: mend the node, or leave the isolation out of the config of such nodes.",
)
MPS_NOT_SERVING = EventKind(
    "MpsNotServing",
    "Warning",
    "Node",
    "ServeMps",
    "MPS does not serve a GPU, so new pods do not get it. Shortly after a start or another config this is normal.",
    "Where `gpushare mps` does not run, start it (chart: `mps.enabled`). If it runs, see its log on the node.",
)
MPS_SERVING = EventKind("MpsServing", "Normal", "Node", "ServeMps", "MPS no longer prevents that new pods get a GPU.")
DRIVER_LIMITS_NOT_SET = EventKind(
    "DriverLimitsNotSet",
    "Warning",
    "Node",
    "SetDriverLimits",
    "No driver limits can be set on a GPU, so new pods do not get it. Shortly after a start this is normal.",
    "See the reason in the message. Where `gpushare driver-limits` does not run, start it (chart: "
    "`driverLimits.enabled`). If it runs, see its log.",
)
DRIVER_LIMITS_SET = EventKind(
    "DriverLimitsSet",
    "Normal",
    "Node",
    "SetDriverLimits",
    "Driver limits no longer prevent that new pods get a GPU.",
)
GPUS_GIVEN_BY_CLAIM = EventKind(
    "GpusGivenByClaim",
    "Normal",
    "Node",
    "HandOver",
    "GPUs belong to ResourceClaims from now on, and the device plugin does not offer them.",
)
GPUS_LEFT_CLAIMS = EventKind(
    "GpusLeftClaims",
    "Normal",
    "Node",
    "HandOver",
    "No ResourceClaim can have the GPUs any more. The device plugin offers them if the config says so, or claims get "
    "them in another way.",
)
GPUS_NOT_OFFERED_TO_CLAIMS = EventKind(
    "GpusNotOfferedToClaims",
    "Warning",
    "Node",
    "PublishResourceSlices",
    "The ResourceSlices of the node do not show all GPUs that ResourceClaims should get, so new pods do not get them "
    "by claim: the API server drops fields or refuses devices, or the daemon lacks a right.",
    "Do as the message says, such as turning a feature gate on.",
)
GPUS_OFFERED_TO_CLAIMS = EventKind(
    "GpusOfferedToClaims",
    "Normal",
    "Node",
    "PublishResourceSlices",
    "After trouble, the ResourceSlices of the node show all GPUs that ResourceClaims should get.",
)
ALLOCATION_REFUSED = EventKind(
    "AllocationRefused",
    "Warning",
    "Node",
    "Allocate",
    "A request of the kubelet cannot be satisfied. The pod shows the same message with `UnexpectedAdmissionError`, or "
    "its container does not start.",
    "See the message; a controller creates the pod again. A scheduler extender places pods where they fit.",
)
GPU_MEMORY_EXCEEDED = EventKind(
    "GpuMemoryExceeded",
    "Warning",
    "Pod",
    "CheckUsage",
    "A container uses more memory of a GPU than it may; one Event for each episode.",
    "Let the pod request more, or use an isolation that enforces the limit.",
)
GPU_MEMORY_WITHIN_LIMIT = EventKind(
    "GpuMemoryWithinLimit", "Normal", "Pod", "CheckUsage", "A container that used too much is within its limit again."
)
LIMIT_NOT_IN_EFFECT = EventKind(
    "GpuLimitNotInEffect",
    "Warning",
    "Pod",
    "CheckLimit",
    "The limit of GPU memory that a container was promised is not enforced; one Event, until the limit is in effect.",
    "See the reason in the message. Remove variables that the message names from the pod, its image and its program.",
)
LIMIT_IN_EFFECT = EventKind(
    "GpuLimitInEffect", "Normal", "Pod", "CheckLimit", "A limit that was not in effect is enforced now."
)
GPU_MEMORY_EVICTED = EventKind(
    "EvictedForGpuMemory",
    "Warning",
    "Pod",
    "Evict",
    "The pod was evicted because it used more memory of a GPU than it may.",
    "Let the pod request more.",
)
EVICTION_REFUSED = EventKind(
    "GpuMemoryEvictionRefused",
    "Warning",
    "Pod",
    "Evict",
    "The pod uses more memory of a GPU than it may and cannot be evicted. It is tried again, but for a static pod.",
    "See the reason in the message: often a PodDisruptionBudget, or a missing right.",
)
FOREIGN_PROCESS = EventKind(
    "ForeignGpuProcess",
    "Warning",
    "Pod or Node",
    "CheckUsage",
    "A process uses a GPU of which its pod holds no units and no claim, or is in no pod; about the pod where that is "
    "known.",
    "Remove `NVIDIA_VISIBLE_DEVICES` from the pod, or end the program on the host.",
)
SLICE_BEING_MADE = EventKind(
    "SliceBeingMade",
    "Normal",
    "Pod",
    "MakeSlice",
    "A slice that the pod asks for is being made, or is kept for it; the message names the GPU and the node.",
)
SLICE_NOT_MADE = EventKind(
    "SliceNotMade",
    "Warning",
    "Pod",
    "MakeSlice",
    "No node can make the slice that the pod asks for, or the API server does not take what was decided; the message "
    "says why, and what is missing.",
    "Wait until other pods end, ask for a smaller slice, or label more nodes; or do as the message says.",
)
SLICE_TAKEN_BACK = EventKind(
    "SliceTakenBack",
    "Warning",
    "Pod",
    "MakeSlice",
    "A slice is not kept for the pod any longer, mostly because the pod did not take it in time; the message says why.",
    "If it repeats, see the Events of the scheduler: something that is not judged keeps the pod from the node.",
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
