"""What can happen on a node, one small type each, and how subscribers hear of it.

Whoever changes something publishes what happened, once, and knows nothing of logs, Events or counters.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpushare_plugin.model.gpu import FailedGpu, Inventory
from gpushare_plugin.model.health import GpuEvent, Verdict


@dataclass(frozen=True, slots=True)
class DriverSlow:
    """The first look at the GPUs has no answer after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NoGpuYet:
    """There is no GPU that can be used; it is looked for again and again."""

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
    """A GPU that cannot be used and never could."""

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
    """A GPU has no fault any more."""

    uuid: str


@dataclass(frozen=True, slots=True)
class GpuCordoned:
    """People keep a GPU from being allocated."""

    uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuUncordoned:
    """People do not keep a GPU from being allocated any more."""

    uuid: str


@dataclass(frozen=True, slots=True)
class GpuNotServedByMps:
    """A GPU cannot be allocated because of MPS."""

    uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuServedByMps:
    """MPS does not keep a GPU from being allocated any more."""

    uuid: str


@dataclass(frozen=True, slots=True)
class GpuWaiting:
    """A GPU is not shared as the config says yet, because of what pods hold of it."""

    uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResourceRetired:
    """A resource is not served any more."""

    resource: str


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """Another config is in effect; `changes` are one line a setting."""

    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigRejected:
    """A config cannot be served; the one before stays in effect."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigUnreadable:
    """The config cannot be read; the one before stays in effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class ConfigUnsuitable:
    """The config in effect does not suit the GPUs that are there now; those that are left are shared as before."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelConfigRejected:
    """At the start, the config that a node label names cannot be served; the node starts as without that label."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MpsRootKept:
    """A config asks for another MPS root than the one that this process started with, which stays."""

    found: str
    in_effect: str


@dataclass(frozen=True, slots=True)
class ReloadRequested:
    """SIGHUP: the config is to be read again."""


@dataclass(frozen=True, slots=True)
class Warned:
    """Something people should know of their config, or of what they cordoned."""

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
    | ConfigChanged
    | ConfigRejected
    | ConfigUnreadable
    | ConfigUnsuitable
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
