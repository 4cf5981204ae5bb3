"""What can happen on a node, one small type each, and how it reaches subscribers.

The part that changes something publishes what happened, once, and knows nothing of logs, Events or counters.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from gpushare_plugin.model.gpu import FailedGpu, Inventory
from gpushare_plugin.model.health import GpuEvent, Verdict
from gpushare_plugin.model.usage.usage import ContainerUsage, Stowaway


@dataclass(frozen=True, slots=True)
class DriverSlow:
    """The first look at the GPUs has no answer after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NoGpuYet:
    """There is no usable GPU yet; the daemon keeps looking."""

    reason: str


@dataclass(frozen=True, slots=True)
class GpusFound:
    """The first look found these GPUs."""

    inventory: Inventory


@dataclass(frozen=True, slots=True)
class GpusChanged:
    """The node has these GPUs now, by UUID, and had others before."""

    uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuLeftOut:
    """A GPU that could never be used, and is not offered."""

    gpu: FailedGpu


@dataclass(frozen=True, slots=True)
class GpuEventReported:
    """The driver reported an event, and what it means for the GPU."""

    event: GpuEvent
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class GpuUnhealthy:
    """A GPU has a fault; only a reset ends one that is `until_reset`."""

    uuid: str
    reason: str
    until_reset: bool


@dataclass(frozen=True, slots=True)
class GpuRecovered:
    """The fault of a GPU is over."""

    uuid: str


@dataclass(frozen=True, slots=True)
class GpuCordoned:
    """A GPU is cordoned: its units cannot be allocated."""

    uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuUncordoned:
    """A GPU is no longer cordoned."""

    uuid: str


@dataclass(frozen=True, slots=True)
class GpuNotServedByMps:
    """A GPU cannot be allocated because of MPS."""

    uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuServedByMps:
    """MPS no longer prevents that a GPU is allocated."""

    uuid: str


@dataclass(frozen=True, slots=True)
class GpuWaiting:
    """A GPU is not shared as configured yet, because pods hold units of its previous mode."""

    uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResourceRetired:
    """A resource is no longer served."""

    resource: str


@dataclass(frozen=True, slots=True)
class PodDrifted:
    """A pod has units of other GPUs than it was promised: each is a number of units by the UUID of the GPU."""

    pod: str
    resource: str
    promised: Mapping[str, int]
    held: Mapping[str, int]


class PodOverLimit(msgspec.Struct, frozen=True):
    """A container uses more memory of a GPU than it may: an episode begins."""

    usage: ContainerUsage


class PodWithinLimit(msgspec.Struct, frozen=True):
    """An episode is over: the container is within its limit again, or gone."""

    usage: ContainerUsage


class PodEvicted(msgspec.Struct, frozen=True):
    """A pod was evicted because it used more than it may."""

    usage: ContainerUsage


class EvictionRefused(msgspec.Struct, frozen=True):
    """A pod that uses more than it may cannot be evicted now."""

    usage: ContainerUsage
    reason: str


class StowawayFound(msgspec.Struct, frozen=True):
    """A process uses a GPU of which its pod holds nothing, or that is in no pod."""

    process: Stowaway


class StowawayGone(msgspec.Struct, frozen=True):
    """A process that was out of place is gone."""

    process: Stowaway


class UsageUnknown(msgspec.Struct, frozen=True):
    """It is not known which containers use the GPUs, or some of them."""

    reason: str


class UsageKnown(msgspec.Struct, frozen=True):
    """It is known again which containers use the GPUs."""


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """Another config is in effect; `changes` are one line a setting."""

    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigRejected:
    """A config was rejected; the current one stays in effect."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigUnreadable:
    """The config cannot be read; the current one stays in effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class ConfigReadable:
    """The config could not be read, and can be again."""


@dataclass(frozen=True, slots=True)
class ConfigValidAgain:
    """After one that was rejected, the config is valid and the same as the one in effect, which stays."""


@dataclass(frozen=True, slots=True)
class ConfigDoesNotFitGpus:
    """The config in effect does not fit the GPUs that are present; the GPUs that are left stay shared as before."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelConfigRejected:
    """The config that a node label names was rejected at the start; the node starts as if the label were not there."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MpsRootKept:
    """A config has another MPS root than the one at the start; the one at the start stays in effect."""

    found: str
    in_effect: str


@dataclass(frozen=True, slots=True)
class ReloadRequested:
    """SIGHUP requested to read the config again."""


@dataclass(frozen=True, slots=True)
class Warned:
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
    | ResourceRetired
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
