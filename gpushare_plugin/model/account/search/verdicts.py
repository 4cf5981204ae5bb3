"""What a node answers a pod: it fits, with a score and a place, or it does not, with the number that is missing."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.node import OfferedGpu
from gpushare_plugin.model.account.occupancy import ResourceAccount
from gpushare_plugin.model.account.pod import Shares
from gpushare_plugin.model.account.request import ANY_GPU, PodRequest

HIGHEST_SCORE = 10
"""The score of the best node, as kube-scheduler takes it from extenders."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The pod fits; `score`, 0 to 10, ranks the node."""

    score: int


FITS = tuple(map(Fit, range(HIGHEST_SCORE + 1)))
"""One object for each score: a cluster has thousands of verdicts."""

UNSCORED = Fit(0)
"""The verdict that is this very object: the pod fits, and nobody has asked for the score yet, which takes longer."""


def graded(price: float) -> Fit:
    """Return the verdict on a node where GPUs cost so much, 0 to 1."""
    return FITS[round(HIGHEST_SCORE * (1 - price))]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod goes: the units of each GPU that each container gets."""

    node: str
    shares: Shares

    @property
    def containers(self) -> dict[str, dict[str, dict[str, int]]]:
        """The units by container, resource and GPU."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for container, resource, gpu, units in self.shares:
            found.setdefault(container, {}).setdefault(resource, {})[gpu] = units
        return found


class GpuShortage(NamedTuple):
    """What one GPU lacks for a request: it has `free` of `units`, `missing` more are needed; `reason` says why not."""

    gpu: OfferedGpu
    free: int
    missing: int
    reason: str | None

    @property
    def text(self) -> str:
        """It in words."""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.gpu.label}{why} has {self.free} free of {self.gpu.units}"


class Misfit(Struct, frozen=True, gc=False):
    """The pod does not fit; words are made only when somebody reads them.

    `summary` has no number of this node, so that it is the same for all nodes with the same cause. Where the GPUs are
    the cause, `account` is that of `resource`, `free` what each GPU has for this request, and the request needs `size`
    units on each of `count` GPUs, or `size` units in all where `count` is 0. `curable` is whether it could fit if other
    pods went: enough of the GPUs have as many units in all.
    """

    summary: str
    request: PodRequest
    account: ResourceAccount | None = None
    size: int = 0
    count: int = 0
    free: tuple[int, ...] = ()
    curable: bool = False

    @property
    def score(self) -> int:
        """The lowest score, for where scores are asked for all the same."""
        return 0

    @property
    def gpus(self) -> tuple[GpuShortage, ...]:
        """What each GPU lacks."""
        if self.account is None:
            return ()
        needed = self.size if self.count else 1
        return tuple(
            GpuShortage(gpu, free, max(0, needed - free), self._why(gpu, before, free))
            for gpu, before, free in zip(self.account.offer.gpus, self.account.free, self.free, strict=True)
        )

    def _why(self, gpu: OfferedGpu, before: int, free: int) -> str | None:
        """Return why a GPU has less for the pod than its units."""
        if refusal := gpu.reason or self.request.wishes.refusal(gpu.name, gpu.product):
            return refusal
        if free >= before:
            return None
        return (
            "lacks another resource of the pod" if self.count else f"other containers of the pod take {before - free}"
        )

    @property
    def missing(self) -> int:
        """The fewest units that are missing: on the GPUs that lack least, or in all."""
        if self.account is None:
            return 0
        if not self.count:
            return max(0, self.size - sum(self.free))
        lacking = sorted(max(0, self.size - free) for free in self.free)
        return sum(lacking[: self.count]) + self.size * max(0, self.count - len(lacking))

    @property
    def reason(self) -> str:
        """The cause with its numbers, GPU by GPU."""
        if self.account is None:
            return self.summary
        resource = self.account.offer.resource
        where = {0: "", 1: " on one GPU"}.get(self.count, f" on each of {self.count} GPUs")
        gpus = ", ".join(gpu.text for gpu in self.gpus) or "the node has no GPU for it"
        unplaced = sum(each.units for each in self.account.unplaced)
        anywhere = f"; {unplaced} units are held on unknown GPUs and count against each" if unplaced else ""
        return f"needs {self.size} units of {resource}{where}, {self.missing} missing: {gpus}{anywhere}"


Verdict = Fit | Misfit


def shortage(
    request: PodRequest, account: ResourceAccount, size: int, count: int, free: tuple[int, ...] | None = None
) -> Misfit:
    """Return that GPUs have too little; `free` are their units for this request, None for all that are free."""
    resource = account.offer.resource
    curable = account.offer.shape.could_have(size, count)
    summary = lacking(resource, size, count, choosy=request.wishes != ANY_GPU)
    return Misfit(summary, request, account, size, count, account.free if free is None else free, curable)


@lru_cache(maxsize=1024)
def lacking(resource: str, size: int, count: int, *, choosy: bool = False) -> str:
    """Return what a node lacks, without its numbers: one object for all nodes.

    `choosy` is whether the pod wants some GPUs only, so that others do not count.
    """
    wanted, bytes_ = " that the pod wants" if choosy else "", _bytes(size)
    if not count:
        return (
            f"fewer than {size} of {resource}{wanted} are free{bytes_}"
            if size > 1
            else f"no {resource}{wanted} is free"
        )
    if count == 1:
        return f"no GPU{wanted} has {size} units of {resource} free{bytes_}"
    return f"fewer than {count} GPUs{wanted} have {size} units of {resource} free each{bytes_}"


_BYTES = {"Gi": 2**30, "G": 10**9, "Mi": 2**20, "M": 10**6}


def _bytes(size: int) -> str:
    """Return what was probably meant by as many units as no GPU has; nothing for an ordinary number."""
    for scale, factor in _BYTES.items():
        if size and size % factor == 0:
            return f" ({size // factor}{scale} = {size} units: units are counted, not bytes; ask for {size // factor})"
    return ""
