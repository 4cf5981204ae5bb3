"""Taints, which keep pods away from a node; a cordon counts as a taint."""

from typing import Final

from gpushare_plugin.base.structs import Struct

UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
"""The key of the taint implied by a cordon."""

_KEEPS_AWAY = ("NoSchedule", "NoExecute")


class Taint(Struct, frozen=True):
    """A taint of a node; keeps away pods without a toleration."""

    key: str
    """The key of the taint."""
    value: str = ""
    """The value of the taint, possibly empty."""
    effect: str = ""
    """The effect: `NoSchedule`, `NoExecute` or `PreferNoSchedule`."""

    @property
    def keeps_away(self) -> bool:
        """Whether pods without a toleration cannot be scheduled; otherwise pods at most prefer a different node."""
        return self.effect in _KEEPS_AWAY

    def __str__(self) -> str:
        """Return the taint in the notation of kubectl."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


CORDON = Taint(UNSCHEDULABLE, effect="NoSchedule")
"""The taint that a pod has to tolerate for a cordoned node."""
