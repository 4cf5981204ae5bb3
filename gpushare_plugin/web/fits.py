"""What fits: where a pod would go now, how many of it fit, why not elsewhere, and which pieces are free."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.kube.objects import ApiPod, Container, Metadata, PodSpec, ResourceRequirements
from gpushare_plugin.ledger.annotations import HAMI_MODELS, HAMI_NOT_MODELS
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.constraints import Toleration
from gpushare_plugin.ledger.kube_scheduler import reasons_beside_room
from gpushare_plugin.ledger.node import GPU_CORES, GPU_COUNT, GPU_MEMORY, Node, OfferedResource
from gpushare_plugin.ledger.occupancy import ONE_GPU_KINDS
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.verdicts import Fit, PodPlace, Verdict, unwanted
from gpushare_plugin.observe.cluster.report import NodeUse, unit_name
from gpushare_plugin.web.short_form import SharedMemoryUnit, ShortForm, limits

MOST_COUNTED = 1000
"""The most pods that are counted; of more, the page says `at least`."""
_MOST_CAUSES = 50
_MOST_NAMES = 5
_MOST_PIECES = 100
_PAUSE_AFTER = 8
"""Places that are found before other tasks have a turn."""
_WHOLE_GPUS = "nvidia.com/gpu"
_OF_KUBERNETES = "node.kubernetes.io/"
"""Starts the keys of taints that Kubernetes itself sets while something is wrong with a node."""


class MisfitCause(Struct, frozen=True):
    """Why the pod does not fit on some nodes."""

    why: str
    """The cause in words."""
    nodes: int
    """The number of nodes."""
    names: str
    """The names of some of them."""


class FreePieces(Struct, frozen=True):
    """What is free of the GPUs of a model that the pod accepts, in one resource."""

    resource: str
    """The name of the resource."""
    model: str
    """The model; empty where it is not known."""
    gpus: int
    """The number of GPUs that can be used."""
    unit: str
    """The unit of the amounts."""
    free: float
    """All that is free."""
    largest: float
    """The largest free piece: what is free of one GPU."""
    where: str
    """The node and the GPU of the largest free piece; empty where nothing is free."""
    small: float | None
    """What is free in pieces that are smaller than the request; None where a request can have several pieces."""

    @property
    def percent(self) -> int:
        """The part of all that is free in pieces that are smaller than the request."""
        return round(100 * (self.small or 0) / self.free) if self.free else 0


class BestPlace(Struct, frozen=True):
    """The place where the pod would go now."""

    node: str
    """The name of the node."""
    score: int
    """The score of the node, from 0 to 10."""
    shares: tuple[tuple[str, int, str, str], ...]
    """Resource, units, index and model for each GPU that gives units."""
    alike: int
    """The number of further nodes with the same score."""


class Fits(Struct, frozen=True):
    """What fits of a request."""

    nodes: int
    """The number of nodes of the cluster."""
    fitting: int
    """The number of nodes where the pod fits."""
    where: BestPlace | None
    """The place where the pod would go; None where the pod fits nowhere."""
    count: int
    """The number of pods that fit one after another, at most MOST_COUNTED."""
    causes: tuple[MisfitCause, ...]
    """Why the pod does not fit on the other nodes, the most common cause first."""
    pieces: tuple[FreePieces, ...]
    """The free pieces by resource and model."""


def short_pod(asked: ShortForm, account: ClusterAccount) -> ApiPod:
    """Return a pod that asks for what a person typed, in the resources of this cluster.

    The pod tolerates all taints that people set: people who type a request think of GPUs, not of taints.
    """
    offers = [offer for node in account.nodes.values() for offer in node.offers.values()]
    memory = _most_common(offers, "memory")
    unit = SharedMemoryUnit(GPU_MEMORY, 1024) if memory is None else SharedMemoryUnit(memory.resource, _mib(memory))
    compute, whole = _most_common(offers, "cores"), _most_common(offers, "gpus")
    amounts = limits(asked, unit, compute.resource if compute else GPU_CORES, whole.resource if whole else _WHOLE_GPUS)
    wishes = {HAMI_MODELS: asked.models, HAMI_NOT_MODELS: asked.not_models}
    labels = {GPU_COUNT: str(asked.gpus)} if asked.gpus > 1 and unit.resource in amounts else {}
    keys = {taint.key for node in account.nodes.values() for taint in node.taints}
    tolerations = [Toleration(key, "Exists") for key in sorted(keys) if not key.startswith(_OF_KUBERNETES)]
    container = Container(name="main", resources=ResourceRequirements(limits=dict(amounts)))
    annotations = {name: ",".join(models) for name, models in wishes.items() if models}
    return ApiPod(
        metadata=Metadata(labels=labels, annotations=annotations),
        spec=PodSpec(containers=(container,), tolerations=tuple(tolerations)),
    )


def _most_common(offers: Iterable[OfferedResource], kind: str) -> OfferedResource | None:
    """Return an offer of the resource and unit of a kind with most GPUs; None without an offer of the kind."""
    found = [offer for offer in offers if offer.kind == kind]
    counts = Counter[tuple[str, int]]()
    for offer in found:
        counts[offer.resource, offer.unit_mib] += len(offer.gpus)
    ((most, _),) = counts.most_common(1) or (((None, 0), 0),)
    return next((offer for offer in found if (offer.resource, offer.unit_mib) == most), None)


def _mib(offer: OfferedResource) -> int:
    """Return the MiB of a unit of memory; without a size in the record, as Aliyun's tool guesses."""
    return offer.unit_mib or (1 if unit_name(offer) == "MiB" else 1024)


async def answer(account: ClusterAccount, pod: Pod) -> Fits:
    """Return what fits of a pod; other tasks have turns meanwhile."""
    refused = {name: why[0] for name, node in account.nodes.items() if (why := reasons_beside_room(pod, node))}
    admitting = [name for name in account.nodes if name not in refused]
    verdicts = account.fits_pod(pod, admitting)
    fitting = sorted(
        (name for name in admitting if isinstance(verdicts[name], Fit)), key=lambda name: (-verdicts[name].score, name)
    )
    causes = refused | {
        name: _cause(verdicts[name], pod, account.nodes[name])
        for name in admitting
        if not isinstance(verdicts[name], Fit)
    }
    return Fits(
        nodes=len(account.nodes),
        fitting=len(fitting),
        where=_where(account, pod, fitting, verdicts),
        pieces=tuple(_pieces(account, pod, admitting))[:_MOST_PIECES],
        causes=tuple(_causes(causes))[:_MOST_CAUSES],
        count=await _count(account, pod, fitting),
    )


def _cause(verdict: Verdict, pod: Pod, node: Node) -> str:
    """Return why a pod does not fit on a node; first that the pod wants none of its GPUs."""
    offers = (node.offers[name] for name in pod.request.amounts if name in node.offers)
    excluded = next(filter(None, (unwanted(pod.request, offer) for offer in offers)), None)
    return excluded or ("" if isinstance(verdict, Fit) else verdict.summary)


def _causes(of_nodes: Mapping[str, str]) -> Iterator[MisfitCause]:
    names: dict[str, list[str]] = {}
    for node, why in of_nodes.items():
        names.setdefault(why, []).append(node)
    for why, several in sorted(names.items(), key=lambda each: (-len(each[1]), each[0])):
        yield MisfitCause(why, len(several), some_of(sorted(several), _MOST_NAMES))


def _where(
    account: ClusterAccount, pod: Pod, fitting: Sequence[str], verdicts: Mapping[str, Verdict]
) -> BestPlace | None:
    if not fitting:
        return None
    best, score = fitting[0], verdicts[fitting[0]].score
    alike = sum(verdicts[name].score == score for name in fitting[1:])
    return BestPlace(best, score, tuple(_shares(account, account.place_pod(pod, best))), alike)


def _shares(account: ClusterAccount, place: PodPlace) -> Iterator[tuple[str, int, str, str]]:
    offers = account.nodes[place.node].offers
    for share in place.shares:
        gpu = next(each for each in offers[share.resource].gpus if each.name == share.gpu)
        yield share.resource, share.units, str(gpu.index), gpu.product


async def _count(account: ClusterAccount, pod: Pod, fitting: Iterable[str]) -> int:
    """Return how many pods fit one after another: each node is filled as long as its policy finds a place."""
    count = 0
    for node in fitting:
        for _ in account.places_of(pod, node):
            count += 1
            if count % _PAUSE_AFTER == 0:
                await asyncio.sleep(0)
            if count == MOST_COUNTED:
                return count
    return count


def pieces_by_claim(nodes: Iterable[NodeUse], pod: Pod) -> Iterator[FreePieces]:
    """Yield the free pieces of the GPUs that the pod accepts and that pods get by claim only."""
    found: dict[tuple[str, str, str], list[tuple[float, str]]] = {}
    for node in nodes:
        for use in node.given_by_claim:
            unit, size = ("GiB", 1024) if use.unit == "MiB" else (use.unit, 1)
            for gpu in use.gpus:
                if pod.request.wishes.refusal(gpu.uuid, gpu.product) is None:
                    piece = node.free_of(gpu) / size, f"{node.name} GPU {gpu.index if gpu.index >= 0 else gpu.uuid}"
                    found.setdefault((use.resource, gpu.product, unit), []).append(piece)
    for (driver, model, unit), pieces in sorted(found.items(), key=lambda each: -max(each[1])[0]):
        largest, where = max(pieces)
        free = sum(size for size, _ in pieces)
        yield FreePieces(driver, model, len(pieces), unit, free, largest, where if largest else "", None)


def _pieces(account: ClusterAccount, pod: Pod, nodes: Iterable[str]) -> Iterator[FreePieces]:
    """Yield the free pieces of the GPUs that the pod accepts, by resource and model; the largest piece first."""
    found: dict[tuple[str, str, str], list[tuple[float, bool, str]]] = {}
    wanted, kinds = pod.request, dict[str, str]()
    for name in nodes:
        for resource, there in account.account_of(name).resources.items():
            offer, scale = there.offer, _mib(there.offer) / 1024 if there.offer.kind == "memory" else 1
            if resource not in wanted.amounts or not offer.kind:
                continue
            kinds[resource] = offer.kind
            need = wanted.amounts[resource] / wanted.gpu_count
            unit = "GiB" if offer.kind == "memory" else unit_name(offer)
            for gpu, units in zip(offer.gpus, there.free, strict=True):
                if gpu.reason is None and wanted.wishes.refusal(gpu.name, gpu.product) is None:
                    piece = units * scale, units < need, f"{name} {gpu.label}"
                    found.setdefault((resource, gpu.product, unit), []).append(piece)
    for (resource, model, unit), pieces in sorted(found.items(), key=lambda each: -max(each[1])[0]):
        largest, _, where = max(pieces, key=lambda each: each[0])
        free = sum(size for size, _, _ in pieces)
        small = sum(size for size, is_small, _ in pieces if is_small) if kinds[resource] in ONE_GPU_KINDS else None
        yield FreePieces(resource, model, len(pieces), unit, free, largest, where if largest else "", small)
