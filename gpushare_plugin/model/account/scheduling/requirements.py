"""What a pod requires of the node where it runs, as kube-scheduler judges it."""

from gpushare_plugin.foundation.structs import Struct, kept_while_used
from gpushare_plugin.model.account.scheduling.constraints import Constraints
from gpushare_plugin.model.account.scheduling.demand import NOTHING, Demand, HostPort

DEFAULT_SCHEDULER = "default-scheduler"
"""Who schedules the pods that name no scheduler."""


class Requirements(Struct, frozen=True, eq=False, weakref=True):
    """What a pod requires of a node; each object equals itself alone, and `requirements` shares the objects.

    - `constraints`: what the pod requires whatever is free on the node
    - `demand`: what the pod takes of the node
    - `problem`: what is too much of the pod to be kept, so that no node is found for the pod; None for nothing
    """

    constraints: Constraints = Constraints()
    demand: Demand = NOTHING
    problem: str | None = None


NOT_READ = Requirements()
"""The requirements of a pod where nobody judges nodes for the pod."""

_shared_constraints = kept_while_used(Constraints)


def requirements(constraints: Constraints, demand: Demand, problem: str | None = None) -> Requirements:
    """Return the one object for requirements that are equal: replicas of a pod share the object."""
    shared = _shared_constraints(constraints.selector, constraints.affinity, constraints.tolerations)
    return _shared(shared, tuple(demand.resources.items()), tuple(demand.ports), problem)


@kept_while_used
def _shared(
    constraints: Constraints, resources: tuple[tuple[str, int], ...], ports: tuple[HostPort, ...], problem: str | None
) -> Requirements:
    return Requirements(constraints, Demand(dict(resources), dict.fromkeys(ports, 1)), problem)
