"""The GPUs of a plan that are given by claim, and the resources that are left for the device plugin."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Dra
from gpushare_plugin.core.chooser import OneGpu, Replicas
from gpushare_plugin.core.claimed_gpu import ClaimedGpu, ClaimWay
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.policies import PolicyName
from gpushare_plugin.core.resource import Resource, Units
from gpushare_plugin.core.unit import Unit
from gpushare_plugin.sharing.isolation.layer import Isolation
from gpushare_plugin.sharing.isolation.mps import MpsIsolation, room_of
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.sharing.ways.replicas import ReplicaGranter
from gpushare_plugin.sharing.ways.whole_gpus import WholeGpuGranter


def without(resources: Iterable[Resource], uuids: AbstractSet[str]) -> tuple[Resource, ...]:
    """Return `resources` without the units of the GPUs `uuids`; a resource without units is left out."""
    left = (_only(each, each.units_of.keys() - uuids) for each in resources)
    return tuple(each for each in left if each.units)


def claimed_gpu(
    gpu: Gpu, resources: Iterable[Resource], isolation: Isolation | None, injection: Injection, settings: Dra
) -> ClaimedGpu:
    """Return `gpu` as claims can get the GPU.

    `resources` are the resources of the plan, `isolation` is the isolation of the entry of the config that shares the
    GPU, None for a whole GPU, and `injection` is the access to GPUs.
    """
    isolation = isolation or Isolation()
    own = tuple(_only(each, {gpu.uuid}) for each in resources if each.role != "cores" and gpu.uuid in each.gpus)
    resource, unit = own[0], own[0].units.of(gpu.uuid)[0]
    way = _way(unit, isolation)
    return ClaimedGpu(
        gpu=gpu,
        way=way,
        resources=own,
        unlimited=WholeGpuGranter(injection),
        isolation=isolation.name,
        limited=bool(isolation.layers),
        compute_variable=isolation.compute_variable(gpu),
        shares=_shares(gpu, way, resource, isolation),
        single_share=isinstance(resource.granter, ReplicaGranter) and resource.granter.fail_requests_greater_than_one,
        default_mib=settings.default.mib if settings.default else None,
        policy=_policy(resource),
    )


def _only(resource: Resource, uuids: AbstractSet[str]) -> Resource:
    """Return `resource` with the units of the GPUs `uuids` only: the same resource if no other GPU has units."""
    by_gpu = {gpu: units for gpu, units in resource.units.by_gpu.items() if gpu.uuid in uuids}
    return resource if len(by_gpu) == len(resource.gpus) else replace(resource, units=Units(by_gpu))


def _way(unit: Unit, isolation: Isolation) -> ClaimWay:
    match unit.form.kind:
        case "memory":
            return "memory"
        case "slice":
            return "slices"
        case "replica":
            return "mps-replicas" if isinstance(isolation, MpsIsolation) else "replicas"
        case _:
            return "whole"


def _shares(gpu: Gpu, way: ClaimWay, resource: Resource, isolation: Isolation) -> int | None:
    if way in {"replicas", "mps-replicas"}:
        return resource.units_of[gpu.uuid]
    return room_of(gpu).most if isinstance(isolation, MpsIsolation) else None


def _policy(resource: Resource) -> PolicyName:
    match resource.chooser:
        case OneGpu(policy=policy):
            return policy
        case Replicas(policy=policy):
            return "binpack" if policy == "packed" else "spread"
        case _:
            return "binpack"
