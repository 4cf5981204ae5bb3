"""What is known of the scheduler extender: its default policy, and whether one runs."""

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.policies import DEFAULT_POLICY
from gpushare_plugin.packing.seen import NOTHING, Lesson


class ExtenderStanding(Struct, frozen=True):
    """The known state of the scheduler extender."""

    policy: str = DEFAULT_POLICY
    """The default placement policy."""
    source: str | None = None
    """The origin of the policy, in words; None for an assumed policy."""
    assumed: str | None = "the scheduler extender was not asked"
    """Why the policy is only assumed; None for a known policy."""
    stopped: str | None = None
    """Why no extender runs; None if an extender runs, or if unknown."""
    installed: bool = True
    """Whether a Lease of an extender exists."""
    open_to_anyone: bool = False
    """Whether the extender answers anybody who asks, without a certificate."""
    lesson: Lesson = NOTHING
    """What the extender learned from last for the policy `packing`."""

    @property
    def words(self) -> str:
        """The default policy and its origin, for people."""
        return f"{self.policy}, {f'assumed: {self.assumed}' if self.assumed else f'chosen by {self.source}'}"
