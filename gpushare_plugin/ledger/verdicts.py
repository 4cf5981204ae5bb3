"""The verdict on a node for a pod: a fit with a score and a place, or a misfit with the number of missing units."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.ledger.node import OfferedGpu, OfferedResource
from gpushare_plugin.ledger.occupancy import ResourceAccount
from gpushare_plugin.ledger.pod import Shares
from gpushare_plugin.ledger.refusal import Shortage
from gpushare_plugin.ledger.request import ANY_GPU, PodRequest

HIGHEST_SCORE = 10
"""The score of the best node, on the scale that kube-scheduler expects of extenders."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict that the pod fits."""

    score: int
    """The score of the node, from 0 to 10 for the best node."""


FITS = tuple(map(Fit, range(HIGHEST_SCORE + 1)))
"""The fits by score: one object per score, because a cluster has thousands of verdicts."""


@dataclass(frozen=True, slots=True)
class PodPlace:
    """The place of a pod: a node, and the GPUs that give the units of every container."""

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


class NodeShortage(Struct, frozen=True, gc=False):
    """The shortage of a node with too few units on its GPUs: the needed and the free units of a resource."""

    offer: OfferedResource
    """The offer of the resource that is short."""
    size: int
    """The number of needed units: on every one of `count` GPUs, or in all if `count` is 0."""
    count: int
    """The number of needed GPUs with `size` units; 0 if only the sum over all GPUs counts."""
    free: tuple[int, ...]
    """The units that every GPU has for the request, in the order of the offer."""


class Misfit(Struct, frozen=True, gc=False):
    """The verdict that the pod does not fit, without numbers of a node, so that nodes can share the object."""

    summary: str
    """The cause without numbers of the node."""
    curable: bool
    """Whether the pod could fit after evictions: enough usable GPUs have enough units, free and held together."""

    @property
    def score(self) -> int:
        """The lowest score, for callers that read the score of every verdict."""
        return 0

    @property
    def reason(self) -> str:
        """The cause in words, with the numbers of the node where the GPUs of a single node are the cause."""
        return self.summary


class NodeMisfit(Misfit, frozen=True, gc=False, kw_only=True):
    """The misfit of one node, with the numbers of the node: its GPUs have too few units.

    The full text is made only when somebody reads it.
    """

    request: PodRequest
    """The request that does not fit."""
    account: ResourceAccount
    """The account of the resource that is short on the GPUs."""
    shortage: NodeShortage
    """The shortage of the node."""

    @classmethod
    def of(cls, shortage: NodeShortage, request: PodRequest, account: ResourceAccount) -> Self:
        """Return the misfit of a node with a shortage, given the account of the resource."""
        misfit = misfit_of(shortage, request)
        return cls(misfit.summary, misfit.curable, request=request, account=account, shortage=shortage)

    @property
    def unwanted(self) -> str | None:
        """Why the pod wants no GPU of the node; None if it wants one, which has too few units."""
        return unwanted(self.request, self.account.offer)

    @property
    def gpu_shortages(self) -> tuple[Shortage, ...]:
        """The shortage of every GPU of the offer.

        For a request without a number per GPU, one unit is missing on a GPU without free units.
        """
        there = zip(self.account.offer.gpus, self.account.free, self.shortage.free, strict=True)
        return tuple(self._shortage(gpu, before, free) for gpu, before, free in there)

    def _shortage(self, gpu: OfferedGpu, before: int, free: int) -> Shortage:
        reason = self._why(gpu, before, free)
        why = f" ({reason})" if reason else ""
        text = f"{gpu.label}{why} has {free} free of {gpu.units}"
        return Shortage(gpu.name, free, max(0, (self.shortage.size if self.shortage.count else 1) - free), text, reason)

    def _why(self, gpu: OfferedGpu, before: int, free: int) -> str | None:
        """Return why the request cannot use a GPU, or not all free units of the GPU; None if all free units count."""
        if refusal := gpu.reason or self.request.wishes.refusal(gpu.name, gpu.product):
            return refusal
        if free >= before:
            return None
        return (
            "lacks another resource of the pod"
            if self.shortage.count
            else f"other containers of the pod take {before - free}"
        )

    @property
    def missing(self) -> int:
        """The number of missing units: on the `count` GPUs with the smallest shortages, or in all if `count` is 0."""
        if not self.shortage.count:
            return max(0, self.shortage.size - sum(self.shortage.free))
        lacking = sorted(max(0, self.shortage.size - free) for free in self.shortage.free)
        return sum(lacking[: self.shortage.count]) + self.shortage.size * max(0, self.shortage.count - len(lacking))

    @property
    def reason(self) -> str:
        """The cause with the numbers of every GPU."""
        resource = self.account.offer.resource
        where = {0: "", 1: " on one GPU"}.get(self.shortage.count, f" on each of {self.shortage.count} GPUs")
        gpus = ", ".join(each.text for each in self.gpu_shortages) or "the node has no GPU for it"
        unplaced = sum(each.units for each in self.account.unplaced)
        anywhere = f"; {unplaced} units are held on unknown GPUs and count against each" if unplaced else ""
        return f"needs {self.shortage.size} units of {resource}{where}, {self.missing} missing: {gpus}{anywhere}"


Verdict = Fit | Misfit


def misfit_of(shortage: NodeShortage, request: PodRequest) -> Misfit:
    """Return the misfit of nodes with a shortage, without numbers of a node."""
    choosy = request.wishes != ANY_GPU
    summary = shortage_in_words(shortage.offer.resource, shortage.size, shortage.count, choosy=choosy)
    return Misfit(summary, shortage.offer.shape.could_have(shortage.size, shortage.count))


def unwanted(request: PodRequest, offer: OfferedResource) -> str | None:
    """Return why a pod wants no GPU of an offer, in words; None if it wants one."""
    refusal = request.wishes.refusal_of_all((gpu.name, gpu.product) for gpu in offer.gpus)
    return None if refusal is None else f"no GPU that the pod wants: {refusal}"


@lru_cache(maxsize=1024)
def shortage_in_words(resource: str, size: int, count: int, *, choosy: bool = False) -> str:
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
