"""A node, with what decides which pods it can take."""

from collections.abc import Mapping
from typing import Final

from gpushare_plugin.foundation.structs import Struct, field

UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
"""The taint that a cordoned node counts as having."""

_KEEPS_AWAY = ("NoSchedule", "NoExecute")


class Taint(Struct, frozen=True):
    """What keeps pods away from a node that do not tolerate it."""

    key: str
    value: str = ""
    effect: str = ""

    @property
    def keeps_away(self) -> bool:
        """Whether pods that do not tolerate it cannot be scheduled; others only prefer another node."""
        return self.effect in _KEEPS_AWAY

    def __str__(self) -> str:
        """Return it as kubectl writes it."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


CORDON = Taint(UNSCHEDULABLE, effect="NoSchedule")
"""What a pod has to tolerate to be scheduled to a cordoned node."""


class SchedulingNode(Struct, frozen=True):
    """A node as kube-scheduler judges it.

    Whether it is ready is in its taints, which Kubernetes keeps up to date. `allocatable` is counted as a `Demand` is:
    CPU in thousandths, memory and storage in bytes, `pods` as their number, all else in units.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Mapping[str, int] = field(default_factory=dict)
