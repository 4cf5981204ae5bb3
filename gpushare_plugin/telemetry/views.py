"""What a scrape shows of each program, and what a metric is; without Prometheus' library."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.resource import NO_WAITS, Durations
from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.model.usage.usage import ContainerUsage, GpuUsage, Usage

V = TypeVar("V")

Sample = tuple[tuple[str, ...], float | Durations]
"""The values of a metric's labels, and its own."""


MOST_CONTAINERS = 1000
"""Containers, counted once for each GPU that they hold, that have series; where there are more, those that use most."""


class View(Struct, frozen=True):
    """What a scrape shows: the node, how many lines the log has lost, and the containers if `container_metrics`.

    `xids` are the errors that the driver reported, by the UUID of the GPU and the XID; `api_errors` the requests to the
    API server that failed, by kind, and `events_dropped` the Events that were lost, None without Events. `hami_metrics`
    and `aliyun_metrics` are whether gauges have HAMi's and Aliyun's names, too, which name the `node`.
    """

    snapshot: Snapshot
    log_lines_dropped: int = 0
    container_metrics: bool = False
    hami_metrics: bool = False
    aliyun_metrics: bool = False
    node: str = ""
    xids: Mapping[tuple[str, str], int] = field(default_factory=dict)
    api_errors: Mapping[str, int] = field(default_factory=dict)
    events_dropped: int | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Cards and MIG instances."""
        return self.snapshot.inventory.gpus

    @property
    def offers(self) -> Iterator[tuple[tuple[str, ...], int, int]]:
        """For each GPU and resource: the labels of both, how many units are offered, and the MiB of one."""
        for gpu in self.gpus:
            for resource, units in self.snapshot.offers(gpu).items():
                yield (*names_of(gpu), resource), len(units), units[0].mib

    @property
    def used(self) -> Iterator[tuple[tuple[str, str], GpuUsage]]:
        """For each GPU that was looked at: its labels, and how it is used."""
        usage = self.snapshot.usage or Usage()
        by_uuid = {gpu.uuid: gpu for gpu in usage.gpus}
        return ((names_of(gpu), by_uuid[gpu.uuid]) for gpu in self.gpus if gpu.uuid in by_uuid)

    def holders(self, gpu: Gpu) -> list[ContainerUsage] | None:
        """Return the containers that hold a GPU, None where that is not known."""
        usage = self.snapshot.usage or Usage()
        return None if usage.held is None else [each for each in usage.containers if each.gpu == gpu.uuid]

    def allocated(self, gpu: Gpu) -> int | None:
        """Return the bytes that containers may use of a GPU, None where one of them has no limit."""
        holders = self.holders(gpu)
        limits = [None] if holders is None else [each.limit for each in holders]
        return None if None in limits else sum(filter(None, limits))

    @property
    def xid_errors(self) -> Iterator[Sample]:
        """How many errors of each XID there were, with the labels of the GPU."""
        labels = {gpu.uuid: gpu.label for gpu in self.gpus}
        return (((labels.get(uuid, ""), uuid, xid), count) for (uuid, xid), count in self.xids.items())

    @property
    def containers(self) -> Iterator[tuple[tuple[str, ...], ContainerUsage]]:
        """For each container that has series, and each GPU: its labels, and what it uses there."""
        labels = {gpu.uuid: gpu.label for gpu in self.gpus}
        for each in self._holders[:MOST_CONTAINERS] if self.container_metrics else ():
            holder = each.namespace, each.pod, each.container
            yield (*holder, labels.get(each.gpu, ""), each.gpu, each.resource), each

    @property
    def containers_left_out(self) -> int:
        """How many containers have no series because there are too many."""
        return max(0, len(self._holders) - MOST_CONTAINERS) if self.container_metrics else 0

    @property
    def _holders(self) -> Sequence[ContainerUsage]:
        usage = self.snapshot.usage or Usage()
        return sorted(usage.containers, key=lambda each: (-(each.used or 0), each.gpu, each.label, each.container))


class ExtenderView(Struct, frozen=True):
    """What a scrape of the scheduler extender shows.

    `requests` are counted by verb and by what was answered; `durations` are how long answers took, by verb and by the
    status of HTTP.
    `refusals` are the pods that were refused, by reason. `nodes` are those it knows, `promises` those to pods that are
    not seen as bound yet. `cache_age` is how long ago, in seconds, the API server last confirmed what it knows; None
    before it has listed everything. `certificate_end` is when the certificates that it serves HTTPS with end, in
    seconds since 1970; None over plain HTTP. `longest_pause` is that of its event loop lately, in seconds.
    """

    leads: bool
    ready: bool
    nodes: int
    promises: int
    requests: Mapping[tuple[str, str], int]
    durations: Mapping[tuple[str, str], Durations]
    refusals: Mapping[str, int] = field(default_factory=dict)
    cache_age: float | None = None
    certificate_end: float | None = None
    api_errors: Mapping[str, int] = field(default_factory=dict)
    longest_pause: float = 0.0


class PartitionerView(Struct, frozen=True):
    """What a scrape of the partitioner shows; all but the first two are 0 or empty where it does not lead.

    `nodes` are those that it divides, `waiting` the pods that ask for slices and have no node, of which the oldest was
    created `longest_wait` seconds ago, `kept` the slices that are kept for them, `unwritten` the nodes to
    which what was decided could not be written. Since the start of the process: `made` and `taken_back` are slices by
    name, `refused` pods for which none could be made, by reason, `rounds` those of decisions, which took
    `round_seconds`. `waits` are how long pods waited until a node offered their slices.
    `cache_age` and `longest_pause` are as in `ExtenderView`.
    """

    leads: bool
    ready: bool
    nodes: int = 0
    waiting: int = 0
    longest_wait: float = 0.0
    kept: int = 0
    unwritten: int = 0
    made: Mapping[str, int] = field(default_factory=dict)
    taken_back: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 0
    round_seconds: float = 0.0
    waits: Durations = NO_WAITS
    cache_age: float | None = None
    api_errors: Mapping[str, int] = field(default_factory=dict)
    longest_pause: float = 0.0


class Metric(Struct, Generic[V], frozen=True):
    """A metric: its name, from which its type follows by Prometheus' conventions, its labels and its samples."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[V], Iterable[Sample]]

    @property
    def type(self) -> str:
        """Its type, in Prometheus' words."""
        if self.name.endswith("_duration_seconds"):
            return "histogram"
        return {"total": "counter", "info": "info"}.get(self.name.rpartition("_")[-1], "gauge")


def names_of(gpu: Gpu) -> tuple[str, str]:
    """Return the labels of a GPU: its number and its UUID."""
    return gpu.label, gpu.uuid
