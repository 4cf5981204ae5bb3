"""What can happen on a node, one small type each, and how it reaches subscribers.

The part that changes something publishes what happened, once, and knows nothing of logs, Events or counters.
"""

from collections.abc import Callable, Iterable, Mapping

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.gpu import FailedGpu, Inventory
from gpushare_plugin.model.health import GpuEvent, Verdict
from gpushare_plugin.model.usage.usage import ContainerUsage, Stowaway


class DriverSlow(Struct, frozen=True):
    """The first look at the GPUs has no answer after so many seconds."""

    seconds: float


class NoGpuYet(Struct, frozen=True):
    """There is no usable GPU yet; the daemon keeps looking."""

    reason: str


class GpusFound(Struct, frozen=True):
    """The first look found these GPUs."""

    inventory: Inventory


class GpusChanged(Struct, frozen=True):
    """The node has these GPUs now, by UUID, and had others before."""

    uuids: tuple[str, ...]


class GpuLeftOut(Struct, frozen=True):
    """A GPU that could never be used, and is not offered."""

    gpu: FailedGpu


class GpuEventReported(Struct, frozen=True):
    """The driver reported an event, and what it means for the GPU."""

    event: GpuEvent
    verdict: Verdict


class GpuUnhealthy(Struct, frozen=True):
    """A GPU has a fault; only a reset ends one that is `until_reset`."""

    uuid: str
    reason: str
    until_reset: bool


class GpuRecovered(Struct, frozen=True):
    """The fault of a GPU is over."""

    uuid: str


class GpuCordoned(Struct, frozen=True):
    """A GPU is cordoned: its units cannot be allocated."""

    uuid: str
    reason: str


class GpuUncordoned(Struct, frozen=True):
    """A GPU is no longer cordoned."""

    uuid: str


class GpuNotServedByMps(Struct, frozen=True):
    """A GPU cannot be allocated because of MPS."""

    uuid: str
    reason: str


class GpuServedByMps(Struct, frozen=True):
    """MPS no longer prevents that a GPU is allocated."""

    uuid: str


class GpuWaiting(Struct, frozen=True):
    """A GPU is not shared as configured yet, because pods hold units of its previous mode."""

    uuid: str
    reason: str


class GpuModeChanged(Struct, frozen=True):
    """A GPU that waited for pods is shared as configured now."""

    uuid: str


class ResourceRetired(Struct, frozen=True):
    """A resource is no longer served."""

    resource: str


class RequestRejected(Struct, frozen=True):
    """A call of the kubelet for a resource was refused; the pod does not start."""

    call: str
    resource: str
    reason: str


class PodDrifted(Struct, frozen=True):
    """A pod has units of other GPUs than it was promised: each is a number of units by the UUID of the GPU."""

    pod: str
    resource: str
    promised: Mapping[str, int]
    held: Mapping[str, int]


class PodOverLimit(Struct, frozen=True):
    """A container uses more memory of a GPU than it may: an episode begins."""

    usage: ContainerUsage


class PodWithinLimit(Struct, frozen=True):
    """An episode is over: the container is within its limit again, or gone."""

    usage: ContainerUsage


class PodEvicted(Struct, frozen=True):
    """A pod was evicted because it used more than it may."""

    usage: ContainerUsage


class EvictionRefused(Struct, frozen=True):
    """A pod that uses more than it may was not evicted."""

    usage: ContainerUsage
    reason: str


class StowawayFound(Struct, frozen=True):
    """A process uses a GPU of which its pod holds nothing, or that is in no pod."""

    process: Stowaway


class StowawayGone(Struct, frozen=True):
    """A process that was out of place is gone."""

    process: Stowaway


class UsageUnknown(Struct, frozen=True):
    """It is not known which containers use the GPUs, or some of them."""

    reason: str


class UsageKnown(Struct, frozen=True):
    """It is known again which containers use the GPUs."""


class ConfigChanged(Struct, frozen=True):
    """Another config is in effect; `changes` are one line a setting."""

    changes: tuple[str, ...]


class ConfigRejected(Struct, frozen=True):
    """A config was rejected; the current one stays in effect."""

    problems: tuple[str, ...]


class ConfigUnreadable(Struct, frozen=True):
    """The config cannot be read; the current one stays in effect."""

    reason: str


class ConfigReadable(Struct, frozen=True):
    """The config could not be read, and can be again."""


class ConfigValidAgain(Struct, frozen=True):
    """After one that was rejected, the config is valid and the same as the one in effect, which stays."""


class ConfigDoesNotFitGpus(Struct, frozen=True):
    """The config in effect does not fit the GPUs that are present; the GPUs that are left stay shared as before."""

    problems: tuple[str, ...]


class LabelConfigRejected(Struct, frozen=True):
    """The config that a node label names was rejected at the start; the node starts as if the label were not there."""

    problems: tuple[str, ...]


class MpsRootKept(Struct, frozen=True):
    """A config has another MPS root than the one at the start; the one at the start stays in effect."""

    found: str
    in_effect: str


class ReloadRequested(Struct, frozen=True):
    """SIGHUP requested to read the config again."""


class Warned(Struct, frozen=True):
    """Something in the config or in a cordon needs attention."""

    notice: str


NewsItem = (
    DriverSlow
    | NoGpuYet
    | GpusFound
    | GpusChanged
    | GpuLeftOut
    | GpuEventReported
    | GpuUnhealthy
    | GpuRecovered
    | GpuCordoned
    | GpuUncordoned
    | GpuNotServedByMps
    | GpuServedByMps
    | GpuWaiting
    | GpuModeChanged
    | ResourceRetired
    | RequestRejected
    | PodDrifted
    | PodOverLimit
    | PodWithinLimit
    | PodEvicted
    | EvictionRefused
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
    | ReloadRequested
    | Warned
)

Subscriber = Callable[[NewsItem], None]
"""Is called with each news item, in the event loop, and must return at once."""


class News:
    """Passes what happens on to every subscriber, in the order in which it happens."""

    def __init__(self, *subscribers: Subscriber) -> None:
        """Pass everything on to these."""
        self._subscribers = subscribers

    def publish(self, item: NewsItem) -> None:
        """Pass one thing that happened on."""
        for subscriber in self._subscribers:
            subscriber(item)

    def warn(self, notices: Iterable[str]) -> None:
        """Publish each notice."""
        for notice in notices:
            self.publish(Warned(notice))
