"""The requirements of a pod on its node, by kube-scheduler's rules."""

from gpushare_plugin.base.structs import Struct, kept_while_used
from gpushare_plugin.ledger.constraints import Constraints
from gpushare_plugin.ledger.demand import NOTHING, Demand, HostPort

DEFAULT_SCHEDULER = "default-scheduler"
"""The scheduler of pods without a scheduler name."""


class Requirements(Struct, frozen=True, eq=False, weakref=True):
    """The requirements of a pod on a node; each object equals itself alone, and `requirements` shares the objects."""

    constraints: Constraints = Constraints()
    """The requirements apart from free resources."""
    demand: Demand = NOTHING
    """The resources and host ports taken by the pod."""
    problem: str | None = None
    """Which counts of the pod are too large to keep: no node is then found for the pod; None for no problem."""


NOT_READ = Requirements()
"""The requirements of a pod in programs that do not judge nodes."""

_shared_constraints = kept_while_used(Constraints)


def requirements(constraints: Constraints, demand: Demand, problem: str | None = None) -> Requirements:
    """Return the shared object for equal requirements, such as the requirements of replicas."""
    shared = _shared_constraints(constraints.selector, constraints.affinity, constraints.tolerations)
    return _shared(shared, tuple(demand.resources.items()), tuple(demand.ports), problem)


@kept_while_used
def _shared(
    constraints: Constraints, resources: tuple[tuple[str, int], ...], ports: tuple[HostPort, ...], problem: str | None
) -> Requirements:
    return Requirements(constraints, Demand(dict(resources), dict.fromkeys(ports, 1)), problem)
