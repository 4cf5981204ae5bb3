"""All metrics of the daemon of a node, and the values read at a scrape; without Prometheus' library."""

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.base.version import __version__
from gpushare_plugin.claims.claim import RefusalReason
from gpushare_plugin.core.effect import State, state_label
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.isolation_choice import first_of_list
from gpushare_plugin.core.prepared_claim import PreparedDevice
from gpushare_plugin.core.snapshot import Cause, Snapshot
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Usage
from gpushare_plugin.observe.metrics.metric import Metric, Sample, single

MOST_CONTAINERS = 1000
"""The most containers with series, counted once per held GPU; containers with the most memory in use come first."""


class View(Struct, frozen=True):
    """The values of a node that a scrape reads."""

    snapshot: Snapshot
    """The node at the time of the scrape."""
    log_lines_dropped: int = 0
    """The number of lines lost by the log."""
    container_metrics: bool = False
    """Whether containers have series."""
    hami_metrics: bool = False
    """Whether gauges appear under HAMi's names, too."""
    aliyun_metrics: bool = False
    """Whether gauges appear under Aliyun's names, too."""
    node: str = ""
    """The name of the node, for the gauges under HAMi's and Aliyun's names."""
    xids: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The number of errors reported by the driver, by the UUID of the GPU and the XID."""
    api_errors: Mapping[str, int] = field(default_factory=dict)
    """The number of failed requests to the API server, by kind."""
    events_dropped: int | None = None
    """The number of lost Events, None without Events."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The cards and MIG instances."""
        return self.snapshot.inventory.gpus

    @property
    def offers(self) -> Iterator[tuple[tuple[str, ...], int, int]]:
        """For every GPU and resource: the labels of both, the number of offered units, and the MiB of a unit."""
        for gpu in self.gpus:
            for resource, units in self.snapshot.offers(gpu).items():
                yield (*names_of(gpu), resource), len(units), units[0].mib

    @property
    def used(self) -> Iterator[tuple[tuple[str, str], GpuUsage]]:
        """For every GPU in the usage: the labels, and the usage."""
        usage = self.snapshot.usage or Usage()
        by_uuid = {gpu.uuid: gpu for gpu in usage.gpus}
        return ((names_of(gpu), by_uuid[gpu.uuid]) for gpu in self.gpus if gpu.uuid in by_uuid)

    def holders(self, gpu: Gpu) -> list[ContainerUsage] | None:
        """Return the containers that hold units of a GPU, None while the holdings are unknown."""
        usage = self.snapshot.usage or Usage()
        return None if usage.held is None else [each for each in usage.containers if each.gpu == gpu.uuid]

    def allocated(self, gpu: Gpu) -> int | None:
        """Return the bytes of a GPU that containers may use, None without a limit or while the holdings are unknown."""
        holders = self.holders(gpu)
        limits = [None] if holders is None else [each.limit for each in holders]
        return None if None in limits else sum(filter(None, limits))

    @property
    def isolations(self) -> Iterator[Sample]:
        """For every GPU for which the config lists several isolations: whether the node has the first of them."""
        snapshot = self.snapshot
        for gpu in self.gpus:
            if (passed_over := snapshot.isolation_reasons.get(gpu.uuid)) is not None:
                isolation = snapshot.isolations[gpu.uuid]
                wanted = first_of_list(isolation, passed_over)
                yield (*names_of(gpu), isolation, wanted), isolation == wanted

    @property
    def effects(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """For every GPU with limits and every state: the labels, and the number of containers in this state."""
        for gpu in self.gpus:
            holders = self.holders(gpu)
            if holders is not None and gpu.uuid in self.snapshot.isolations_in_use:
                found = [each.effect.state for each in holders if each.effect is not None]
                yield from (((*names_of(gpu), state_label(state)), found.count(state)) for state in get_args(State))

    @property
    def xid_errors(self) -> Iterator[Sample]:
        """The number of errors per XID, with the labels of the GPU."""
        labels = {gpu.uuid: gpu.label for gpu in self.gpus}
        return (((labels.get(uuid, ""), uuid, xid), count) for (uuid, xid), count in self.xids.items())

    @property
    def claimed(self) -> Iterator[tuple[Gpu, Sequence[PreparedDevice]]]:
        """Every GPU that claims can get or have, with what prepared claims have of the GPU."""
        claims = self.snapshot.claims
        for gpu in self.gpus if claims is not None else ():
            held = [] if claims is None else list(claims.on(gpu.uuid))
            if held or gpu.uuid in self.snapshot.by_claim:
                yield gpu, held

    @property
    def claim_refusals(self) -> Mapping[str, int]:
        """The number of refused claims, by reason; of every reason, so that a first refusal is seen as an increase."""
        claims = self.snapshot.claims
        return {} if claims is None else dict.fromkeys(get_args(RefusalReason), 0) | dict(claims.refusals)

    @property
    def containers(self) -> Iterator[tuple[tuple[str, ...], ContainerUsage]]:
        """For every container with series, and every GPU of the container: the labels, and the usage."""
        labels = {gpu.uuid: gpu.label for gpu in self.gpus}
        for each in self._holders[:MOST_CONTAINERS] if self.container_metrics else ():
            holder = each.namespace, each.pod, each.container
            yield (*holder, labels.get(each.gpu, ""), each.gpu, each.resource), each

    @property
    def containers_left_out(self) -> int:
        """The number of containers without series, counted once per held GPU, because the node has too many."""
        return max(0, len(self._holders) - MOST_CONTAINERS) if self.container_metrics else 0

    @property
    def _holders(self) -> Sequence[ContainerUsage]:
        usage = self.snapshot.usage or Usage()
        return sorted(usage.containers, key=lambda each: (-(each.used or 0), each.gpu, each.label, each.container))


def names_of(gpu: Gpu) -> tuple[str, str]:
    """Return the labels of a GPU: the number and the UUID."""
    return gpu.label, gpu.uuid


_GPU = ("index", "uuid")
_OFFER = (*_GPU, "resource")
_CONTAINER = ("namespace", "pod", "container", *_GPU, "resource")

METRICS: tuple[Metric[View], ...] = (
    Metric(
        "gpushare_build_info",
        "Version of gpushare.",
        ("version",),
        lambda _: [((__version__,), 1)],
    ),
    Metric(
        "gpushare_driver_info",
        "Versions of the NVIDIA driver and of its newest CUDA.",
        ("driver_version", "cuda_version"),
        lambda view: [(_driver(view), 1)] if view.snapshot.inventory.driver_version else [],
    ),
    Metric(
        "gpushare_gpu_info",
        "Each GPU and MIG instance with its mode: memory, time-slicing, mps, exclusive, or none if not offered.",
        (*_GPU, "product", "mode"),
        lambda view: [((*names_of(gpu), gpu.product, view.snapshot.mode(gpu) or "none"), 1) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpu_memory_bytes",
        "Memory of a GPU for containers; none where unknown.",
        _GPU,
        lambda view: [(names_of(gpu), gpu.memory_mib * MIB) for gpu in view.gpus if gpu.memory_mib],
    ),
    Metric(
        "gpushare_gpu_healthy",
        "1 if the GPU can be allocated.",
        _GPU,
        lambda view: [(names_of(gpu), gpu.uuid not in view.snapshot.excluded) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpu_unhealthy",
        "1 if a GPU cannot be allocated for this reason: fault, mps, limits or cordon.",
        (*_GPU, "reason"),
        lambda view: [
            ((*names_of(gpu), cause), cause in causes)
            for gpu in view.gpus
            for causes in [view.snapshot.causes(gpu)]
            for cause in get_args(Cause)
            if cause != "limits" or gpu.uuid in view.snapshot.driver_limits
        ],
    ),
    Metric(
        "gpushare_gpu_xid_errors_total",
        "Errors of the driver by XID, ignored XIDs included.",
        (*_GPU, "xid"),
        lambda view: list(view.xid_errors),
    ),
    Metric(
        "gpushare_gpu_mps_served",
        "1 if MPS serves a GPU under MPS.",
        _GPU,
        lambda view: [
            (names_of(gpu), "mps" not in view.snapshot.causes(gpu))
            for gpu in view.gpus
            if gpu.uuid in view.snapshot.under_mps
        ],
    ),
    Metric(
        "gpushare_gpu_waiting",
        "1 while pods hold units of the previous mode.",
        _GPU,
        lambda view: [(names_of(gpu), gpu.uuid in view.snapshot.waiting) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpu_isolation",
        "Isolation of a GPU with several in the config; 1 if the first of the list (wanted).",
        (*_GPU, "isolation", "wanted"),
        lambda view: list(view.isolations),
    ),
    single(
        "gpushare_gpus_unresponsive",
        "GPUs that do not respond, never responded, or are gone.",
        lambda view: sum(each.number is None for each in view.snapshot.inventory.failed),
    ),
    Metric(
        "gpushare_gpu_units",
        "Units offered of a GPU, healthy or not.",
        _OFFER,
        lambda view: [(labels, units) for labels, units, _ in view.offers],
    ),
    Metric(
        "gpushare_gpu_units_allocatable",
        "Units offered of a GPU and healthy, held or not.",
        _OFFER,
        lambda view: [
            (labels, 0 if labels[1] in view.snapshot.excluded else count) for labels, count, _ in view.offers
        ],
    ),
    Metric(
        "gpushare_gpu_units_used",
        "Units of a GPU that containers hold.",
        _OFFER,
        lambda view: [
            (labels, held.get((labels[2], labels[1]), 0))
            for held in [(view.snapshot.usage or Usage()).held]
            if held is not None
            for labels, _, _ in view.offers
        ],
    ),
    Metric(
        "gpushare_gpu_unit_memory_bytes",
        "Memory of a memory unit or slice.",
        _OFFER,
        lambda view: [(labels, mib * MIB) for labels, _, mib in view.offers if mib],
    ),
    Metric(
        "gpushare_gpu_units_drifted",
        "Units held of a GPU beyond promises of the scheduler extender; only with --follow-pods (cluster.followPods).",
        _OFFER,
        lambda view: [
            (labels, excess.get(labels[-1], {}).get(labels[1], 0))
            for labels, _, _ in view.offers
            if (excess := view.snapshot.excess) is not None
        ],
    ),
    Metric(
        "gpushare_gpu_memory_used_bytes",
        "Memory in use of a GPU, without the driver's own.",
        _GPU,
        lambda view: [(gpu, used.memory_used) for gpu, used in view.used if used.memory_used is not None],
    ),
    Metric(
        "gpushare_gpu_utilization_ratio",
        "Part of the time in which a GPU computed; not for MIG.",
        _GPU,
        lambda view: [(gpu, used.utilization) for gpu, used in view.used if used.utilization is not None],
    ),
    Metric(
        "gpushare_gpu_usage_known",
        "1 if gpushare knows which containers use the GPU.",
        _GPU,
        lambda view: [(gpu, used.unknown is None) for gpu, used in view.used],
    ),
    Metric(
        "gpushare_gpu_processes",
        "Processes that use a GPU; with MIG counted for the instances.",
        _GPU,
        lambda view: [(gpu, len(used.processes)) for gpu, used in view.used if used.processes is not None],
    ),
    Metric(
        "gpushare_gpu_mps_clients",
        "Processes that compute on a GPU through MPS.",
        _GPU,
        lambda view: [
            (gpu, used.mps_clients)
            for gpu, used in view.used
            if used.uuid in view.snapshot.under_mps and used.mps_clients is not None
        ],
    ),
    Metric(
        "gpushare_gpu_foreign_processes",
        "Processes on an offered GPU without units or claim.",
        _GPU,
        lambda view: [(gpu, len(used.stowaways)) for gpu, used in view.used if used.unknown is None],
    ),
    Metric(
        "gpushare_gpu_containers_over_limit",
        "Containers that exceed their limit by more than 512 MiB.",
        _GPU,
        lambda view: [
            (gpu, sum(each.over for each in (view.snapshot.usage or Usage()).containers if each.gpu == used.uuid))
            for gpu, used in view.used
            if used.unknown is None
        ],
    ),
    Metric(
        "gpushare_gpu_container_limits",
        "Containers by state of their limit: in_effect, in_effect_since, not_in_effect, unknown.",
        (*_GPU, "state"),
        lambda view: list(view.effects),
    ),
    Metric(
        "gpushare_container_units",
        "Units of a GPU that a container holds, 1 by a claim.",
        _CONTAINER,
        lambda view: [(container, used.units) for container, used in view.containers],
    ),
    Metric(
        "gpushare_container_memory_limit_bytes",
        "Memory that a container may use; none without a limit.",
        _CONTAINER,
        lambda view: [(container, used.limit) for container, used in view.containers if used.limit is not None],
    ),
    Metric(
        "gpushare_container_memory_used_bytes",
        "Memory that a container uses.",
        _CONTAINER,
        lambda view: [(container, used.used) for container, used in view.containers if used.used is not None],
    ),
    Metric(
        "gpushare_container_utilization_ratio",
        "Part of the time in which a container computed; not for MIG.",
        _CONTAINER,
        lambda view: [
            (container, used.utilization) for container, used in view.containers if used.utilization is not None
        ],
    ),
    Metric(
        "gpushare_container_over_limit",
        "1 if a container exceeds its limit by more than 512 MiB.",
        _CONTAINER,
        lambda view: [
            (container, used.over)
            for container, used in view.containers
            if used.used is not None and used.limit is not None
        ],
    ),
    Metric(
        "gpushare_container_limit_in_effect",
        "1 if the limit of a container is enforced; none where unknown.",
        _CONTAINER,
        lambda view: [
            (container, used.effect.state != "not in effect")
            for container, used in view.containers
            if used.effect is not None and used.effect.state != "unknown"
        ],
    ),
    single(
        "gpushare_containers_left_out",
        "Containers without series, beyond the 1000 with the most memory in use.",
        lambda view: view.containers_left_out if view.container_metrics else None,
    ),
    single(
        "gpushare_usage_age_seconds",
        "Seconds since the last look at the use of GPUs.",
        lambda view: usage.age if (usage := view.snapshot.usage) is not None else None,
    ),
    Metric(
        "gpushare_resource_registered",
        "1 if the kubelet knows the resource and reads its list.",
        ("resource",),
        lambda view: [((name,), standing.registered) for name, standing in view.snapshot.standings.items()],
    ),
    Metric(
        "gpushare_registrations_total",
        "Registrations that the kubelet accepted.",
        ("resource",),
        lambda view: [((name,), standing.registrations) for name, standing in view.snapshot.standings.items()],
    ),
    Metric(
        "gpushare_registration_failures_total",
        "Failed attempts to serve and register a resource.",
        ("resource",),
        lambda view: [((name,), standing.registration_failures) for name, standing in view.snapshot.standings.items()],
    ),
    Metric(
        "gpushare_call_duration_seconds",
        "Durations of kubelet calls by gRPC method and code.",
        ("resource", "method", "code"),
        lambda view: [
            ((name, *call), durations)
            for name, standing in view.snapshot.standings.items()
            for call, durations in standing.calls.items()
        ],
    ),
    Metric(
        "gpushare_allocations_total",
        "Successful Allocate calls, one for each container.",
        ("resource",),
        lambda view: [((name,), standing.allocations) for name, standing in view.snapshot.standings.items()],
    ),
    Metric(
        "gpushare_refusals_total",
        "Failed calls of the kubelet; the pod fails.",
        ("resource", "call"),
        lambda view: [
            ((name, call), count)
            for name, standing in view.snapshot.standings.items()
            for call, count in standing.refusals.items()
        ],
    ),
    Metric(
        "gpushare_gpu_claims_prepared",
        "Shares of a GPU in prepared ResourceClaims.",
        _GPU,
        lambda view: [(names_of(gpu), len(held)) for gpu, held in view.claimed],
    ),
    Metric(
        "gpushare_gpu_claimed_memory_bytes",
        "Memory of a GPU in prepared ResourceClaims.",
        _GPU,
        lambda view: [(names_of(gpu), sum(each.memory_mib for each in held) * MIB) for gpu, held in view.claimed],
    ),
    Metric(
        "gpushare_claim_call_duration_seconds",
        "Durations of kubelet calls for ResourceClaims by gRPC method and code.",
        ("method", "code"),
        lambda view: list(view.snapshot.claims.calls.items()) if view.snapshot.claims else [],
    ),
    Metric(
        "gpushare_claim_refusals_total",
        "ResourceClaims not prepared, by reason (docs/claims.md).",
        ("reason",),
        lambda view: [((reason,), count) for reason, count in view.claim_refusals.items()],
    ),
    single(
        "gpushare_resource_slices_published",
        "1 if ResourceSlices show all GPUs for claims.",
        lambda view: not view.snapshot.claims.trouble if view.snapshot.claims else None,
    ),
    single(
        "gpushare_resource_slices_written_total",
        "Writes and deletions of ResourceSlices.",
        lambda view: view.snapshot.claims.slices_written if view.snapshot.claims else None,
    ),
    single(
        "gpushare_resource_slices_mended_total",
        "ResourceSlices written again after changes by others.",
        lambda view: view.snapshot.claims.slices_mended if view.snapshot.claims else None,
    ),
    Metric(
        "gpushare_api_errors_total",
        "Failed requests to the API server: unanswered, forbidden, conflict, throttled, rejected or server (5xx).",
        ("reason",),
        lambda view: [((kind,), count) for kind, count in view.api_errors.items()],
    ),
    single(
        "gpushare_events_dropped_total",
        "Lost Kubernetes Events; only with --events (cluster.events).",
        lambda view: view.events_dropped,
    ),
    Metric(
        "gpushare_config_info",
        "Name of the config in effect; empty without a file.",
        ("name",),
        lambda view: [((view.snapshot.config.name,), 1)] if view.snapshot.config else [],
    ),
    single(
        "gpushare_config_last_reload_successful",
        "1 if the newest config is in effect.",
        lambda view: not view.snapshot.config.refused if view.snapshot.config else None,
    ),
    single(
        "gpushare_config_last_reload_success_timestamp_seconds",
        "When the config in effect was loaded.",
        lambda view: view.snapshot.config.loaded if view.snapshot.config else None,
    ),
    single(
        "gpushare_notices",
        "Warnings, such as a rejected config; texts: annotation gpushare/gpus.",
        lambda view: len(view.snapshot.notices),
    ),
    single(
        "gpushare_log_lines_dropped_total",
        "Lost lines of the log.",
        lambda view: view.log_lines_dropped,
    ),
)
"""All metrics of the daemon of a node, in the order of the page."""


def _driver(view: View) -> tuple[str, str]:
    inventory = view.snapshot.inventory
    return inventory.driver_version, inventory.cuda
