"""The MPS namespaces that containers of a node need, by what they hold (protocol 3).

Everything follows from the kubelet's record of holdings, after restarts too: the same units have the same namespace,
and a container that restarts finds its namespace again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpushare_plugin.core.holding import Holding
from gpushare_plugin.core.namespaces import ContainerNamespace, namespace_name
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.unit import Unit
from gpushare_plugin.sharing.isolation.mps import UnderMps


def namespaces(
    holdings: Iterable[Holding],
    resources: Mapping[str, Resource],
    modes: Mapping[str, UnderMps],
    before: Mapping[str, ContainerNamespace],
) -> dict[str, ContainerNamespace]:
    """Return the namespaces of all containers in `holdings` with units of the GPUs in `modes`, by name.

    `modes` are the modes of GPUs under MPS with namespaces, by UUID. The limits of units that are no longer offered are
    those of `before`.
    """
    containers: defaultdict[tuple[str, str], list[Holding]] = defaultdict(list)
    for holding in holdings:
        containers[holding.uid, holding.container].append(holding)
    found: dict[str, ContainerNamespace] = {}
    for of_container in containers.values():
        compute = _compute(of_container, resources)
        for each in of_container:
            resource = resources.get(each.resource)
            if (made := _namespace(each, resource, modes, before)) is not None:
                percentage = made.active_thread_percentage if compute is None else compute
                found[made.name] = ContainerNamespace(made.name, made.memory_limit_mib, percentage)
    return found


def _compute(holdings: Iterable[Holding], resources: Mapping[str, Resource]) -> int | None:
    """Return the percentage that a container has requested as a resource of its own, None where it has not."""
    for each in holdings:
        resource = resources.get(each.resource)
        if resource is not None and resource.role == "cores" and (gpus := resource.gpus_of(each.ids)):
            return min(gpus.values())
    return None


def _namespace(
    holding: Holding, resource: Resource | None, modes: Mapping[str, UnderMps], before: Mapping[str, ContainerNamespace]
) -> ContainerNamespace | None:
    if resource is not None and resource.role == "cores":
        return None
    held = holding.units(dict.fromkeys(modes), resource.listed if resource else lambda _: None)
    units = [unit for unit in held if unit.form.kind not in {"cores", "whole"}]
    if not units or any(unit.gpu not in modes for unit in units):
        return None
    if resource is not None and (grant := resource.granted(holding.ids)) is not None:
        return grant.namespace
    name = namespace_name(holding.ids)
    return before.get(name) or _by_units(name, units, modes)


def _by_units(name: str, units: Iterable[Unit], modes: Mapping[str, UnderMps]) -> ContainerNamespace | None:
    """Return the namespace for units that are no longer offered: their memory, or that of a replica, and no compute."""
    memory: defaultdict[str, int] = defaultdict(int)
    for unit in units:
        memory[unit.gpu] += unit.mib
    least = min(mib or modes[gpu].memory_limit_mib or 0 for gpu, mib in memory.items())
    return ContainerNamespace(name, least) if least else None
