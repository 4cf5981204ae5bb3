"""The health of GPUs: faults, the meaning of XIDs, and the end of a fault.

Sources: NVIDIA's device plugin for the XIDs of applications; the column "Resolution Bucket (Immediate Action)" of
NVIDIA's Xid catalog for the XIDs that need a reset, and for 94 and 109
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; docs/adr/0016-xids-94-and-109-follow-the-catalog.md).
"""

from collections.abc import Mapping
from typing import Literal

from gpushare_plugin.base.structs import Struct, field

XidVerdict = Literal["ignore", "until recovery", "until reset"]
"""The meaning of an XID: no fault, a fault until the GPU is seen to be well, or a fault until a reset."""

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 94})
"""XIDs of errors of the running program, not of the GPU."""

RESET_XIDS = frozenset({48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143})
"""XIDs of errors that need a reset: until then, not even a GPU that still answers can be trusted."""


class XidPolicy(Struct, frozen=True):
    """The meaning of XIDs for the health of a GPU.

    An XID that is neither ignored nor needs a reset makes the GPU unhealthy until the GPU is seen to be well.
    """

    ignored: frozenset[int] | None = APPLICATION_XIDS
    """The XIDs without a consequence for health; None for all XIDs."""
    watched: frozenset[int] | None = frozenset()
    """The XIDs with a consequence even if `ignored` has the XID; None for all XIDs."""
    until_reset: frozenset[int] = RESET_XIDS
    """The XIDs that make a GPU unhealthy until a reset."""

    @property
    def watches_nothing(self) -> bool:
        """Whether all events are ignored: then a GPU without event reports is no trouble."""
        return self.ignored is None and self.watched == frozenset()

    def verdict(self, xid: int) -> XidVerdict:
        """Return the meaning of an event with the XID `xid`."""
        watched = self.watched is None or xid in self.watched
        if not watched and (self.ignored is None or xid in self.ignored):
            return "ignore"
        return "until reset" if xid in self.until_reset else "until recovery"


class Cordon(Struct, frozen=True):
    """The cordons on the GPUs of a node."""

    gpus: Mapping[str, str] = field(default_factory=dict)
    """The cordoned GPUs by UUID, with the source of the cordon."""
    notices: tuple[str, ...] = ()
    """Warnings about cordons that cannot be read."""


class GpuEvent(Struct, frozen=True):
    """An event on a GPU, reported by the driver."""

    uuid: str | None
    """The UUID of the card; None where the driver names no card, which can mean any card."""
    xid: int | None
    """The XID; None for an event without an XID, for example a failure of the event API."""
    detail: str
    """The event in words."""
    gpu_instance: int | None = None
    """The ID of the GPU instance of a card in MIG mode; None where the driver names no instance."""
    compute_instance: int | None = None
    """The ID of the compute instance of a card in MIG mode; None where the driver names no instance."""


class Fault(Struct, frozen=True):
    """A fault: a GPU with a fault must not be allocated."""

    reason: str
    """The fault in words."""
    until_reset: bool = False
    """Whether only a reset can end the fault."""


class Probe(Struct, frozen=True):
    """The findings of a look at a GPU."""

    trouble: str | None = None
    """The trouble in words; None for a GPU that answers every question and whose errors are reported."""
    lost: bool = False
    """Whether the GPU is off the bus, or was reset while in use."""
    needs_reset: bool | None = None
    """Whether the GPU needs a reset by the driver's own word; None where the driver is too old to tell."""


class CardHealth(Struct):
    """The health of a GPU over time.

    A fault that needs a reset ends only after the reset was seen: the GPU was off the bus and is back, or the driver
    denies the need of a reset.
    """

    good_probes: int = 3
    """The number of good probes in a row that end a fault."""
    fault: Fault | None = None
    """The present fault; None for a healthy GPU."""
    _good: int = 0
    _was_lost: bool = False

    def report(self, fault: Fault) -> None:
        """Record a fault; the need of a reset stays, even where the new fault needs no reset."""
        until_reset = fault.until_reset or (self.fault is not None and self.fault.until_reset)
        self.fault = Fault(fault.reason, until_reset)
        self._good = 0
        self._was_lost = False

    def probed(self, probe: Probe) -> None:
        """Record the findings of a probe."""
        if probe.trouble is not None:
            self.fault = Fault(probe.trouble, self.fault is not None and self.fault.until_reset)
            self._good = 0
            self._was_lost = self._was_lost or probe.lost
        elif probe.needs_reset and self.fault is None:
            self.report(Fault("the driver reports that the GPU needs a reset", until_reset=True))
        elif self.fault is not None and self._may_recover(self.fault, probe):
            self._good += 1
            if self._good >= self.good_probes:
                self.fault = None
                self._was_lost = False
        else:
            self._good = 0

    def _may_recover(self, fault: Fault, probe: Probe) -> bool:
        if probe.needs_reset:
            return False
        return not fault.until_reset or self._was_lost or probe.needs_reset is False
