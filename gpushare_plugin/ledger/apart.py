"""The choice of GPUs for units that can come from several GPUs of one node: replicas, slices and whole GPUs."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.core.chooser import Chooser, Request
from gpushare_plugin.core.policies import UnitCounts
from gpushare_plugin.ledger.node import OfferedResource
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.ledger.verdicts import Misfit, NodeShortage


class ApartChoice(NamedTuple):
    """The GPUs chosen for the units of one resource."""

    shares: list[Share]
    """The units of every container, by GPU."""
    free: Mapping[str, int]
    """The units of every GPU that are free afterwards."""


def chosen_apart(
    request: PodRequest, offer: OfferedResource, free: dict[str, int], chooser: Chooser, avoided: Collection[str]
) -> ApartChoice | NodeShortage | Misfit:
    """Choose container by container, in the order of the kubelet's calls, or return why the pod does not fit.

    Later containers reuse the units of init containers. `free` are the units of every GPU for the pod, and change with
    the choice. GPUs other than those `avoided` are tried first.
    """
    resource = offer.resource
    reusable: dict[str, int] = {}
    shares: list[Share] = []
    for container in request.containers:
        if not (size := container.amount(resource)):
            continue
        taken = _reused(reusable, size)
        try:
            asked = Request(resource, size, _unit_counts(offer, free, taken), taken)
            chosen = _choose(chooser, offer, asked, avoided)
        except PlacementError as error:
            if offer.kind == "slices" and size > 1:
                return Misfit(str(error), curable=False)
            return NodeShortage(offer, size, 0, tuple(units + taken.get(gpu, 0) for gpu, units in free.items()))
        shares += [Share(container.name, resource, gpu, units) for gpu, units in chosen.items() if units]
        for gpu, units in chosen.items():
            reused = taken.get(gpu, 0)
            free[gpu] -= units - reused
            # An init container leaves all its units to later containers; any other container keeps its units.
            reusable[gpu] = reusable.get(gpu, 0) - reused + (units if container.kind == "init" else 0)
    return ApartChoice(shares, free)


def _choose(chooser: Chooser, offer: OfferedResource, request: Request, avoided: Collection[str]) -> Mapping[str, int]:
    """Return the units that a chooser gives one container, by GPU; raises PlacementError if no choice is possible."""
    if avoided:
        free = {
            gpu: 0 if gpu in avoided else each.free - request.taken.get(gpu, 0) for gpu, each in request.gpus.items()
        }
        apart = Request(request.resource, request.size, _unit_counts(offer, free, request.taken), request.taken)
        try:
            return chooser.choose(apart)
        except PlacementError:
            pass
    return chooser.choose(request)


def _unit_counts(offer: OfferedResource, free: Mapping[str, int], taken: Mapping[str, int]) -> dict[str, UnitCounts]:
    """Return the units of the GPUs for a chooser: the units already taken for a container count as free."""
    return {gpu.name: UnitCounts(gpu.index, free[gpu.name] + taken.get(gpu.name, 0), gpu.units) for gpu in offer.gpus}


def _reused(reusable: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the units that a container reuses of earlier init containers, by GPU, at most `most` units in all."""
    taken: dict[str, int] = {}
    for gpu, units in reusable.items():
        if units and most:
            taken[gpu] = min(units, most)
            most -= taken[gpu]
    return taken
