"""Taints, which keep pods away from a node; a cordon counts as one."""

from typing import Final

from gpushare_plugin.foundation.structs import Struct

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
