"""The news of a node: a small type for each kind of news, and the distribution to subscribers.

The part of the node behind a change publishes the change, once, and knows nothing of logs, Events or counters.
"""

from collections.abc import Callable, Iterable, Mapping

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.gpu import FailedGpu, Inventory
from gpushare_plugin.core.health import GpuEvent, XidVerdict
from gpushare_plugin.core.usage import ContainerUsage, Stowaway


class DriverSlow(Struct, frozen=True):
    """The first look at the GPUs has no answer yet."""

    seconds: float
    """The seconds since the look began."""


class NoGpuYet(Struct, frozen=True):
    """The node has no usable GPU yet; the daemon keeps looking for GPUs."""

    reason: str
    """Why no GPU is usable, for people."""


class GpusFound(Struct, frozen=True):
    """The first look found GPUs."""

    inventory: Inventory
    """The GPUs."""


class GpusChanged(Struct, frozen=True):
    """The GPUs of the node changed."""

    uuids: tuple[str, ...]
    """The UUIDs of the GPUs now."""


class CdiDevicesNamed(Struct, frozen=True):
    """Containers get other CDI devices from now on."""

    names: tuple[str, ...]
    """The qualified names of the devices, GPU by GPU; empty where containers get no CDI devices."""


class GpuLeftOut(Struct, frozen=True):
    """A GPU could never be used, and is not offered."""

    gpu: FailedGpu
    """The GPU with the reason."""


class GpuEventReported(Struct, frozen=True):
    """The driver reported an event."""

    event: GpuEvent
    """The event."""
    verdict: XidVerdict
    """The consequence for the GPU."""


class GpuUnhealthy(Struct, frozen=True):
    """A GPU has a fault, or the fault needs a reset from now on."""

    uuid: str
    """The UUID of the GPU."""
    reason: str
    """The fault, for people."""
    until_reset: bool
    """Whether only a reset of the GPU ends the fault."""


class GpuRecovered(Struct, frozen=True):
    """The fault of a GPU is over."""

    uuid: str
    """The UUID of the GPU."""


class GpuCordoned(Struct, frozen=True):
    """A GPU is cordoned: the units of the GPU cannot be allocated."""

    uuid: str
    """The UUID of the GPU."""
    reason: str
    """What cordons the GPU, for people."""


class GpuUncordoned(Struct, frozen=True):
    """A GPU is no longer cordoned."""

    uuid: str
    """The UUID of the GPU."""


class GpuNotServedByMps(Struct, frozen=True):
    """A GPU cannot be allocated because of MPS."""

    uuid: str
    """The UUID of the GPU."""
    reason: str
    """Why MPS does not serve or release the GPU, for people."""


class GpuServedByMps(Struct, frozen=True):
    """MPS no longer prevents the allocation of a GPU."""

    uuid: str
    """The UUID of the GPU."""


class GpuNotLimited(Struct, frozen=True):
    """A GPU cannot be allocated, because no driver limits can be set there."""

    uuid: str
    """The UUID of the GPU."""
    reason: str
    """Why limits cannot be set, for people."""


class GpuLimited(Struct, frozen=True):
    """Driver limits no longer prevent the allocation of a GPU."""

    uuid: str
    """The UUID of the GPU."""


class GpuWaiting(Struct, frozen=True):
    """A GPU is not shared by the config yet, because pods hold, or may hold, units of the previous mode."""

    uuid: str
    """The UUID of the GPU."""
    reason: str
    """Why the GPU waits, with the names of pods, for people."""


class GpuModeChanged(Struct, frozen=True):
    """A GPU waited for pods, and is shared by the config now."""

    uuid: str
    """The UUID of the GPU."""
    isolation: str
    """The isolation that limits containers from now on; `none` without one."""


class GpuIsolationNotFirst(Struct, frozen=True):
    """A node lacks the first isolation of a list in the config for a GPU, and has chosen another one."""

    uuid: str
    """The UUID of the GPU."""
    isolation: str
    """The chosen isolation."""
    wanted: str
    """The first isolation of the list."""
    words: str
    """The choice with the reasons, for people."""


class GpusGivenByClaim(Struct, frozen=True):
    """GPUs belong to claims from now on, and not to the device plugin."""

    uuids: tuple[str, ...]
    """The UUIDs of the GPUs."""


class GpusLeftClaims(Struct, frozen=True):
    """No claim can have these GPUs any more; they go to the device plugin, or back to claims in another way."""

    uuids: tuple[str, ...]
    """The UUIDs of the GPUs."""


class GpusNotOfferedToClaims(Struct, frozen=True):
    """The ResourceSlices of the node do not show all GPUs that claims should get."""

    reason: str
    """Why, with the remedy, for people."""


class GpusOfferedToClaims(Struct, frozen=True):
    """The ResourceSlices of the node show all GPUs that claims should get."""

    count: int
    """The number of devices in the ResourceSlices."""
    again: bool
    """Whether this ends an earlier `GpusNotOfferedToClaims`."""


class ResourceRetired(Struct, frozen=True):
    """A resource is no longer served."""

    resource: str
    """The name of the resource."""


class RequestRejected(Struct, frozen=True):
    """A call of the kubelet for a resource was refused; the pod does not start."""

    call: str
    """The name of the call."""
    resource: str
    """The name of the resource."""
    reason: str
    """Why the call was refused, for people."""


class PodDrifted(Struct, frozen=True):
    """A pod has units of other GPUs than the promised GPUs."""

    pod: str
    """The pod, in the form `namespace/name`."""
    resource: str
    """The name of the resource."""
    promised: Mapping[str, int]
    """The number of promised units by the UUID of the GPU."""
    held: Mapping[str, int]
    """The number of held units by the UUID of the GPU."""


class PodOverLimit(Struct, frozen=True):
    """A container begins to use more memory of a GPU than the limit: an episode begins."""

    usage: ContainerUsage
    """The usage by the container."""


class PodWithinLimit(Struct, frozen=True):
    """An episode is over: the container is within its limit again, or gone."""

    usage: ContainerUsage
    """The usage by the container; without memory in use where the container is gone."""


class PodEvicted(Struct, frozen=True):
    """A pod was evicted because the pod used more memory than its limit."""

    usage: ContainerUsage
    """The usage by the container of the pod furthest over its limit."""


class EvictionRefused(Struct, frozen=True):
    """A pod over its limit was not evicted."""

    usage: ContainerUsage
    """The usage by a container of the pod over its limit."""
    reason: str
    """Why the pod was not evicted, for people."""


class LimitNotInEffect(Struct, frozen=True):
    """The limit of a container was found not to be in effect."""

    usage: ContainerUsage
    """The usage by the container, with the reason in its effect."""


class LimitInEffect(Struct, frozen=True):
    """A limit of an earlier `LimitNotInEffect` is in effect."""

    usage: ContainerUsage
    """The usage by the container."""


class StowawayFound(Struct, frozen=True):
    """A process uses a GPU although its pod holds no unit and no claim of the GPU, or the process is in no pod."""

    process: Stowaway
    """The process."""


class StowawayGone(Struct, frozen=True):
    """A process of an earlier `StowawayFound` is gone."""

    process: Stowaway
    """The process."""


class UsageUnknown(Struct, frozen=True):
    """The containers behind the use of some or all GPUs are unknown."""

    reason: str
    """Why the containers are unknown, for people."""


class UsageKnown(Struct, frozen=True):
    """The containers behind the use of all GPUs are known again."""


class ConfigChanged(Struct, frozen=True):
    """Another config is in effect."""

    changes: tuple[str, ...]
    """The changed settings, one line for a setting."""


class ConfigRejected(Struct, frozen=True):
    """A config was rejected; the current config stays in effect."""

    problems: tuple[str, ...]
    """The mistakes of the rejected config, one line for a mistake."""


class ConfigUnreadable(Struct, frozen=True):
    """The config cannot be read; the current config stays in effect."""

    reason: str
    """Why the config cannot be read, for people."""


class ConfigReadable(Struct, frozen=True):
    """An unreadable config can be read again."""


class ConfigValidAgain(Struct, frozen=True):
    """After a rejected config, the config is valid again and equals the config in effect; nothing changes."""


class ConfigDoesNotFitGpus(Struct, frozen=True):
    """The config in effect does not fit the present GPUs; GPUs that were shared before stay shared in the same way."""

    problems: tuple[str, ...]
    """The conflicts of the config with the GPUs, one line for a conflict."""


class LabelConfigRejected(Struct, frozen=True):
    """The config named by a node label was rejected at the start; the node starts without the label."""

    problems: tuple[str, ...]
    """The mistakes of the config, one line for a mistake."""


class MpsRootKept(Struct, frozen=True):
    """A config changes the MPS root; the MPS root of the start stays in effect."""

    found: str
    """The MPS root of the config."""
    in_effect: str
    """The MPS root of the start."""


class DraDriverWaits(Struct, frozen=True):
    """The config has another name for the DRA driver than the claims of the node."""

    found: str
    """The name in the config."""
    served: str
    """The name under which GPUs were given by claim, which is served until the claims have ended."""


class MpsProtocolKept(Struct, frozen=True):
    """A config changes the protocol of MPS; the protocol of the start stays in effect."""

    found: int
    """The protocol of the config."""
    in_effect: int
    """The protocol of the start."""


class ReloadRequested(Struct, frozen=True):
    """SIGHUP requested a reload of the config."""


class Warned(Struct, frozen=True):
    """Something in the config, a cordon or the partitioning of the node needs attention."""

    notice: str
    """The warning, for people."""


NewsItem = (
    DriverSlow
    | NoGpuYet
    | GpusFound
    | GpusChanged
    | CdiDevicesNamed
    | GpuLeftOut
    | GpuEventReported
    | GpuUnhealthy
    | GpuRecovered
    | GpuCordoned
    | GpuUncordoned
    | GpuNotServedByMps
    | GpuServedByMps
    | GpuNotLimited
    | GpuLimited
    | GpuWaiting
    | GpuModeChanged
    | GpuIsolationNotFirst
    | GpusGivenByClaim
    | GpusLeftClaims
    | GpusNotOfferedToClaims
    | GpusOfferedToClaims
    | ResourceRetired
    | RequestRejected
    | PodDrifted
    | PodOverLimit
    | PodWithinLimit
    | PodEvicted
    | EvictionRefused
    | LimitNotInEffect
    | LimitInEffect
    | StowawayFound
    | StowawayGone
    | UsageUnknown
    | UsageKnown
    | ConfigChanged
    | ConfigRejected
    | ConfigUnreadable
    | ConfigReadable
    | ConfigValidAgain
    | ConfigDoesNotFitGpus
    | LabelConfigRejected
    | MpsRootKept
    | DraDriverWaits
    | MpsProtocolKept
    | ReloadRequested
    | Warned
)

Subscriber = Callable[[NewsItem], None]
"""Takes a news item; runs in the event loop, and must return at once."""


class News:
    """Passes every news item to every subscriber, in the order of publication."""

    def __init__(self, *subscribers: Subscriber) -> None:
        """Pass news to these subscribers."""
        self._subscribers = subscribers

    def publish(self, item: NewsItem) -> None:
        """Pass a news item to every subscriber."""
        for subscriber in self._subscribers:
            subscriber(item)

    def warn(self, notices: Iterable[str]) -> None:
        """Publish every notice as a warning."""
        for notice in notices:
            self.publish(Warned(notice))
