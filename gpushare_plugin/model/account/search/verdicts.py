"""The verdict on a node for a pod: a fit with a score and a place, or a misfit with the number of missing units."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.node import OfferedGpu
from gpushare_plugin.model.account.occupancy import ResourceAccount
from gpushare_plugin.model.account.pod import Shares
from gpushare_plugin.model.account.request import ANY_GPU, PodRequest

HIGHEST_SCORE = 10
"""The score of the best node, on the scale that kube-scheduler expects of extenders."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict that the pod fits."""

    score: int
    """The score of the node, from 0 to 10 for the best node."""


FITS = tuple(map(Fit, range(HIGHEST_SCORE + 1)))
"""The fits by score: one object per score, because a cluster has thousands of verdicts."""

UNSCORED = Fit(0)
"""The verdict that the pod fits, without a score: a score takes longer to find, and nobody has asked for a score yet.

Compare with `is`: `FITS[0]` is an equal object.
"""


def graded(price: float) -> Fit:
    """Return the verdict on a node, given the price of the GPUs from 0 (best) to 1."""
    return FITS[round(HIGHEST_SCORE * (1 - price))]


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a pod on a node."""

    node: str
    """The name of the node."""
    shares: Shares
    """The units of every container, by GPU and resource."""

    @property
    def containers(self) -> dict[str, dict[str, dict[str, int]]]:
        """The units by container, resource and GPU."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for container, resource, gpu, units in self.shares:
            found.setdefault(container, {}).setdefault(resource, {})[gpu] = units
        return found


class GpuShortage(NamedTuple):
    """The shortage of one GPU for a request."""

    gpu: OfferedGpu
    """The GPU, with the number of all its units."""
    free: int
    """The number of units that the GPU has for the request."""
    missing: int
    """The number of units that the GPU lacks; for a request without a number per GPU, 1 if `free` is 0."""
    reason: str | None
    """Why the request cannot use the GPU, or not all free units of the GPU; None if all free units count."""

    @property
    def text(self) -> str:
        """The shortage in words."""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.gpu.label}{why} has {self.free} free of {self.gpu.units}"


class Misfit(Struct, frozen=True, gc=False):
    """The verdict that the pod does not fit; the full text is made only when somebody reads it."""

    summary: str
    """The cause without numbers of the node: the same text for all nodes with the same cause."""
    request: PodRequest
    """The request that does not fit."""
    account: ResourceAccount | None = None
    """The account of the resource that is short on the GPUs; None if the GPUs are not the cause."""
    size: int = 0
    """The number of needed units: on every one of `count` GPUs, or in all if `count` is 0."""
    count: int = 0
    """The number of needed GPUs with `size` units; 0 if only the sum over all GPUs counts."""
    free: tuple[int, ...] = ()
    """The units that every GPU has for the request, in the order of the offer."""
    curable: bool = False
    """Whether the pod could fit after evictions: enough usable GPUs have enough units, free and held together."""

    @property
    def score(self) -> int:
        """The lowest score, for callers that read the score of every verdict."""
        return 0

    @property
    def gpus(self) -> tuple[GpuShortage, ...]:
        """The shortage of every GPU of the offer; empty if the GPUs are not the cause."""
        if self.account is None:
            return ()
        needed = self.size if self.count else 1
        return tuple(
            GpuShortage(gpu, free, max(0, needed - free), self._why(gpu, before, free))
            for gpu, before, free in zip(self.account.offer.gpus, self.account.free, self.free, strict=True)
        )

    def _why(self, gpu: OfferedGpu, before: int, free: int) -> str | None:
        """Return why the request cannot use a GPU, or not all free units of the GPU; None if all free units count."""
        if refusal := gpu.reason or self.request.wishes.refusal(gpu.name, gpu.product):
            return refusal
        if free >= before:
            return None
        return (
            "lacks another resource of the pod" if self.count else f"other containers of the pod take {before - free}"
        )

    @property
    def missing(self) -> int:
        """The number of missing units: on the `count` GPUs with the smallest shortages, or in all if `count` is 0."""
        if self.account is None:
            return 0
        if not self.count:
            return max(0, self.size - sum(self.free))
        lacking = sorted(max(0, self.size - free) for free in self.free)
        return sum(lacking[: self.count]) + self.size * max(0, self.count - len(lacking))

    @property
    def reason(self) -> str:
        """The cause with the numbers of every GPU."""
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
    """Return the verdict that the GPUs have too few units.

    `free` are the units of the GPUs for this request, None if all free units count.
    """
    resource = account.offer.resource
    curable = account.offer.shape.could_have(size, count)
    summary = lacking(resource, size, count, choosy=request.wishes != ANY_GPU)
    return Misfit(summary, request, account, size, count, account.free if free is None else free, curable)


@lru_cache(maxsize=1024)
def lacking(resource: str, size: int, count: int, *, choosy: bool = False) -> str:
    """Return the shortage of a node in words, without numbers of the node: one text object for all nodes.

    With `choosy`, the pod accepts only some GPUs, and the text counts only accepted GPUs.
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
    """Return a hint for a number of units that was probably meant in bytes, an empty text for an ordinary number."""
    for scale, factor in _BYTES.items():
        if size and size % factor == 0:
            return f" ({size // factor}{scale} = {size} units: units are counted, not bytes; ask for {size // factor})"
    return ""
