"""Replicas: a GPU is advertised several times, and its containers take turns or, under MPS, run side by side.

A replica is access to a GPU, not a part of the GPU. If an isolation gives each replica an equal part, a second replica
of the same GPU adds nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from gpushare_plugin.base.errors import Path, PlacementError
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.config.findings import Findings
from gpushare_plugin.config.schema.sections import ReplicatedResource, ReplicatedResources
from gpushare_plugin.config.unreported_memory import with_memory, without_memory
from gpushare_plugin.core.chooser import Replicas
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation, Grant
from gpushare_plugin.core.resource import Resource, Units
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, Form, Unit, listed_size, wire_size
from gpushare_plugin.sharing.isolation.layer import Isolation, Layers, Limits, isolate
from gpushare_plugin.sharing.isolation.table import isolations, isolations_under_mps
from gpushare_plugin.sharing.isolation.variables import ShareVariables
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.sharing.ways.way import Entry, NodeFacts, Unsuitable, by_place
from gpushare_plugin.sharing.ways.whole_gpus import whole_unit

_NAME_INSTANCES = 'Name MIG instances in devices, such as "0:0", in an entry with the name of their resource'


class _Replication(Struct, frozen=True):
    """An entry with the settings for its replicas."""

    entry: Entry
    """The entry."""
    name: str
    """The resource name of the replicas."""
    count: int
    """The number of replicas of each GPU."""
    refuse_several: bool
    """Whether requests for several replicas are refused."""


class ReplicasWay:
    """The way of sharing for the entries of `sharing.timeSlicing.resources` and `sharing.mps.resources`."""

    section: Path = ("sharing",)

    def __init__(self, node: NodeFacts, findings: Findings) -> None:
        """Make the entries, which share cards and MIG instances alike, by their resource names before sharing."""
        self._node = node
        self._findings = findings
        self._replications = [each for each in (*self._time_sliced(), *self._under_mps()) if self._concerns(each)]
        self.entries = [each.entry for each in self._replications]

    def _time_sliced(self) -> Iterator[_Replication]:
        if section := self._node.config.sharing.time_slicing:
            for index, settings in enumerate(section.resources):
                path = ("sharing", "timeSlicing", "resources", index)
                limits = Limits("unlimited", settings.replicas, burst=settings.burst)
                named = isolations(settings.isolation, self._node.config, limits, self._node.means)
                yield self._replication(path, section, settings, named, refuse_several=False)

    def _under_mps(self) -> Iterator[_Replication]:
        if section := self._node.config.sharing.mps:
            for index, settings in enumerate(section.resources):
                path = ("sharing", "mps", "resources", index)
                limits = Limits(equal_parts=settings.replicas, burst=settings.burst)
                named = isolations_under_mps(settings.isolation, self._node.config, limits, self._node.means)
                yield self._replication(path, section, settings, named, refuse_several=True)

    def _replication(
        self,
        path: Path,
        section: ReplicatedResources,
        settings: ReplicatedResource,
        isolations: tuple[Isolation, ...],
        *,
        refuse_several: bool,
    ) -> _Replication:
        """Return an entry with its settings; `refuse_several` is the default for `failRequestsGreaterThanOne`."""
        named = tuple(gpu for gpu, name in self._node.offered.items() if name == settings.name)
        needs_memory = all(each.layers for each in isolations)
        entry = Entry(
            path=path,
            name=settings.name,
            devices=settings.devices,
            candidates=with_memory(named) if needs_memory else named,
            unsized=without_memory(named) if needs_memory else (),
            unsuitable={
                gpu: Unsuitable(f"is in MIG mode and cannot be shared as {settings.name}", _NAME_INSTANCES)
                for gpu in self._node.inventory.cards
                if gpu.mig_enabled and gpu not in self._node.offered
            },
            isolations=isolations,
            containers=lambda _gpu: settings.replicas,
            key="replicas",
        )
        given = section.fail_requests_greater_than_one
        return _Replication(
            entry, section.advertised_name(settings), settings.replicas, refuse_several if given is None else given
        )

    def _concerns(self, each: _Replication) -> bool:
        found = bool(each.entry.candidates or each.entry.unsized)
        if not found:
            self._findings.notice(f"this node has no {each.entry.name}: this entry has no effect here")
        return found

    def resources(self, unclaimed: Mapping[Gpu, str]) -> list[Resource]:
        """Return one resource for each name, with the replicas and the whole GPUs of the name."""
        by_name: dict[str, dict[Gpu, Sequence[Unit]]] = {}
        replications = [each for each in self._replications if each.entry.gpus]
        for each in replications:
            whole = {gpu: [whole_unit(gpu)] for gpu, name in unclaimed.items() if name == each.name}
            replicas = self._units(each, listed_size(chain.from_iterable(whole.values())))
            by_name.setdefault(each.name, {}).update({**replicas, **whole})
        rules = {each.name: each for each in replications}
        return [self._resource(rules[name], units) for name, units in by_name.items() if units]

    def _units(self, each: _Replication, beside: int) -> dict[Gpu, Sequence[Unit]]:
        """Return the replicas of an entry, none if the device list is too long with `beside` bytes of other units."""
        gpus = each.entry.gpus
        size = replica_list_size(gpus, each.count) + beside
        if size > KUBELET_MESSAGE_LIMIT:
            self._findings.problem(
                (*each.entry.path, "replicas"),
                f"{each.count} found; the list of replicas would take {size:,} bytes and the kubelet accepts "
                f"{KUBELET_MESSAGE_LIMIT:,}; at most {most_replicas(gpus, beside)} for these GPUs",
            )
            return {}
        return {gpu: replica_units(gpu, each.count) for gpu in gpus}

    def _resource(self, rules: _Replication, units: Mapping[Gpu, Sequence[Unit]]) -> Resource:
        enforced = rules.entry.isolation.layers
        return Resource(
            rules.name,
            Units({gpu: units[gpu] for gpu in by_place(units)}),
            Replicas(self._node.config.flags.plugin.shared_devices_allocation_policy),
            ReplicaGranter(
                self._node.injection, (ShareVariables(), *enforced) if enforced else (), rules.refuse_several
            ),
        )


class ReplicaGranter(Struct, frozen=True):
    """Gives a container access to GPUs, by replicas or by whole GPUs of the same resource."""

    injection: Injection
    """The access to GPUs."""
    layers: Layers = ()
    """The layers that keep a replica within its part of the GPU; none without an isolation."""
    fail_requests_greater_than_one: bool = False
    """Whether requests for several replicas are refused."""

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPUs and, if replicas are limited, the limits on each GPU.

        Raises PlacementError for refused requests, and for limited replicas beside whole GPUs.
        """
        shared = [each for each in allocation.gpus if each.gpu.uuid not in allocation.ids]
        if self.fail_requests_greater_than_one and shared and len(allocation.ids) > 1:
            raise PlacementError(
                f"{allocation.resource}: {len(allocation.ids)} replicas requested, at most 1 allowed "
                "(failRequestsGreaterThanOne): several replicas give a container no more of a shared GPU; request 1"
            )
        grant = self.injection.grant([each.gpu for each in allocation.gpus])
        if not shared or not self.layers:
            return grant
        if len(shared) < len(allocation.gpus):
            raise PlacementError(
                f"{allocation.resource}: replicas and whole GPUs found in one request, and only replicas are limited: "
                "request 1, or rename the replicas"
            )
        # Several replicas of a GPU give a container no larger share of the GPU than one.
        gpus = tuple(replace(each, units=1, mib=each.gpu.memory_mib // each.of) for each in shared)
        return isolate(grant, replace(allocation, gpus=gpus), self.layers)


def replica_units(gpu: Gpu, count: int) -> list[Unit]:
    """Cut `gpu` into `count` replicas."""
    return Form.replica(gpu.uuid).units(gpu.uuid, gpu.numa_node, range(count))


def most_replicas(gpus: Sequence[Gpu], beside: int = 0) -> int:
    """Return the most replicas of each of `gpus` within the kubelet's message limit, beside `beside` bytes."""
    counts = range(1, KUBELET_MESSAGE_LIMIT)
    return bisect_right(counts, KUBELET_MESSAGE_LIMIT - beside, key=lambda count: replica_list_size(gpus, count))


def replica_list_size(gpus: Iterable[Gpu], count: int) -> int:
    """Return the bytes of the device list for `count` replicas of each of `gpus`, without making the replicas."""
    return sum(wire_size(Form.replica(gpu.uuid).prefix, count, gpu.numa_node) for gpu in gpus)
