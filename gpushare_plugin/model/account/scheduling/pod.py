"""A pod, with what decides which nodes can take it."""

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.scheduling.constraints import Constraints
from gpushare_plugin.model.account.scheduling.demand import NOTHING, Demand

DEFAULT_SCHEDULER = "default-scheduler"
"""Who schedules the pods that name no scheduler."""


class SchedulingPod(Struct, frozen=True):
    """A pod as kube-scheduler judges it.

    `node` is where it is bound, None while it waits. One that has `ended` takes nothing of its node. With `gates` no
    scheduler looks at it before somebody removes them. `problem` is what is too much of the pod to be kept: no node is
    found for it then.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    constraints: Constraints = Constraints()
    demand: Demand = NOTHING
    node: str | None = None
    ended: bool = False
    gates: tuple[str, ...] = ()
    scheduler: str = DEFAULT_SCHEDULER
    problem: str | None = None

    @property
    def schedulable(self) -> bool:
        """Whether a scheduler looks for a node for it now."""
        return self.node is None and not self.ended and not self.gates
