"""Whether a GPU may be allocated: faults, what they mean, and when they are over.

Facts: the XIDs that are an application's own, as in NVIDIA's device plugin; those that need a reset, from the
resolution column of NVIDIA's "XID Errors" document.
"""

from collections.abc import Mapping
from typing import Literal

from gpushare_plugin.foundation.structs import Struct, field

Verdict = Literal["ignore", "until recovery", "until reset"]

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of the program that ran, not of the GPU."""

RESET_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140, 143})
"""Errors after which a GPU that still answers must not be trusted until it was reset."""


class XidPolicy(Struct, frozen=True):
    """What an XID means for the GPU it came from.

    `ignored` and `watched` are XIDs, or None for all of them; `watched` wins. Whatever is neither ignored nor needs a
    reset makes the GPU unhealthy until it is seen to be well.
    """

    ignored: frozenset[int] | None = APPLICATION_XIDS
    watched: frozenset[int] | None = frozenset()
    until_reset: frozenset[int] = RESET_XIDS

    @property
    def watches_nothing(self) -> bool:
        """Whether no event of a GPU means anything, so that it does not matter if none is reported."""
        return self.ignored is None and self.watched == frozenset()

    def verdict(self, xid: int) -> Verdict:
        """Return what an event with this XID means."""
        watched = self.watched is None or xid in self.watched
        if not watched and (self.ignored is None or xid in self.ignored):
            return "ignore"
        return "until reset" if xid in self.until_reset else "until recovery"


class Cordon(Struct, frozen=True):
    """The GPUs that are cordoned, by UUID, each with what cordons it, and warnings about what cannot be read."""

    gpus: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


class GpuEvent(Struct, frozen=True):
    """Something the driver reported about a GPU.

    `uuid` is None when the driver does not say which GPU it was, so that it could be any. `xid` is None for what has no
    XID, such as an event API that fails; `detail` says in words what happened. `gpu_instance` and `compute_instance`
    are the IDs of the part of a MIG card that it happened to, None where the driver names none.
    """

    uuid: str | None
    xid: int | None
    detail: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Fault(Struct, frozen=True):
    """Why a GPU must not be allocated, and whether only a reset can end that."""

    reason: str
    until_reset: bool = False


class Probe(Struct, frozen=True):
    """What a look at a GPU found.

    `trouble` is None for a GPU that answers every question. `lost` is whether it is off the bus. `needs_reset` is the
    driver's own word on that, None where the driver is too old to say.
    """

    trouble: str | None = None
    lost: bool = False
    needs_reset: bool | None = None


class CardHealth(Struct):
    """The health of one GPU over time.

    A fault ends after `good_probes` good probes in a row. One that needs a reset ends only once the reset was seen: the
    GPU was off the bus and is back, or the driver says that it needs none.
    """

    good_probes: int = 3
    fault: Fault | None = None
    _good: int = 0
    _was_lost: bool = False

    def report(self, fault: Fault) -> None:
        """Record a fault; one that needs a reset is not made lighter by a later one that does not."""
        until_reset = fault.until_reset or (self.fault is not None and self.fault.until_reset)
        self.fault = Fault(fault.reason, until_reset)
        self._good = 0
        self._was_lost = False

    def probed(self, probe: Probe) -> None:
        """Record what a probe found."""
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
