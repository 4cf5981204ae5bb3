"""Which few pods, if moved, would free cards or room for a waiting pod, as data; `stranded_words` has the words."""

from collections.abc import Iterable, Mapping
from typing import Literal

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.version import __version__
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.kube_scheduler import admits
from gpushare_plugin.ledger.moving import Move, Moving
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.stranded import MOST_MOVED, Found, Relief, free_cards, room_for
from gpushare_plugin.ledger.verdicts import Fit
from gpushare_plugin.observe.parts import Part
from gpushare_plugin.partition.stranded_slices import card_with_room, slice_for

NOTES = (
    "Nothing was changed. Not known, so look before you move pods: PodDisruptionBudgets, local volumes, pod affinity",
    f"At most {MOST_MOVED} pods are moved for each. Pods of DaemonSets, static pods and pods that are ending stay",
)
"""What the advice does not know, and what it leaves out."""


class MovedPod(Part, frozen=True, kw_only=True):
    """A pod that is to be moved."""

    namespace: str
    """The namespace of the pod."""
    pod: str
    """The name of the pod."""
    controller: str = ""
    """The kind of the controller, which makes the pod again; empty without one."""
    amounts: Mapping[str, int]
    """The units of each extended resource that the pod takes."""
    to_node: str
    """The node where the pod fits."""
    to_gpus: tuple[int, ...]
    """The indexes of the cards there."""


class Freed(Part, frozen=True, kw_only=True):
    """What is freed by moves."""

    node: str
    """The name of the node."""
    index: int | None = None
    """The index of the card that is freed, or that has room for the slice; None for room on any GPUs of the node."""
    moves: tuple[MovedPod, ...] = ()
    """The pods to move; none for a card that no pod has."""
    idle: tuple[str, ...] = ()
    """The resources of the idle slices and MIG instances of the card, one for each."""


class StrandedReport(Part, frozen=True, kw_only=True):
    """The whole output of `gpushare explain --stranded`."""

    version: Literal[1] = 1
    """The version of the format, raised by changes that would mislead older readers."""
    gpushare: str = __version__
    """The version of gpushare."""
    namespace: str | None = None
    """The namespace of the waiting pod; None for advice on cards."""
    pod: str | None = None
    """The name of the waiting pod; None for advice on cards."""
    needless: str | None = None
    """Why no room has to be freed for the pod; None if the pod needs room."""
    candidates: int = 0
    """The number of cards and nodes of which those with the fewest pods in the way were examined."""
    freed: tuple[Freed, ...] = ()
    """What can be freed, the smallest disruption first.

    Of cards, each counts on the moves before; for a pod, each is enough.
    """
    notes: tuple[str, ...] = NOTES
    """Sentences on what is not known, and what is left out."""


def stranded_cards(account: ClusterAccount, controllers: Mapping[str, str]) -> StrandedReport:
    """Return which cards are free if few pods are moved; the account is used up.

    `controllers` are the kinds of the pods' controllers, by UID.
    """
    moving = Moving(account, controllers)
    found = free_cards(moving)
    return StrandedReport(candidates=found.candidates, freed=_freed(moving, found.reliefs))


def stranded_room(account: ClusterAccount, controllers: Mapping[str, str], pod: Pod) -> StrandedReport:
    """Return where a waiting pod has room if few pods are moved; the account is used up."""
    about = StrandedReport(namespace=pod.namespace, pod=pod.name)
    if (needless := _needless(account, pod)) is not None:
        return replace(about, needless=needless)
    moving = Moving(account, controllers)
    found = room_for(moving, pod)
    if pod.slices:
        found = _both(found, slice_for(moving, pod))
    return replace(about, candidates=found.candidates, freed=_freed(moving, found.reliefs))


def _needless(account: ClusterAccount, pod: Pod) -> str | None:
    """Return why no room has to be freed for a pod; None if the pod needs room."""
    if pod.ended:
        return "it has ended"
    if pod.node is not None:
        return f"it is on node {pod.node}"
    if not account.concerns(pod.request) and not pod.slices:
        return "it asks for nothing that gpushare serves"
    if pod.slices and (roomy := card_with_room(account, pod)) is not None:
        return f"{roomy.gpu.label} of node {roomy.node} has room for its slice"
    slices = {each.resource for each in pod.slices}
    nodes = [node for node in account.nodes.values() if slices <= node.offers.keys()]
    names = [node.name for node in nodes if admits(pod.needs.constraints, node)]
    verdicts = account.fits_pod(pod, names)
    fitting = next((name for name in names if isinstance(verdicts[name], Fit)), None)
    return None if fitting is None else f"it fits on GPUs of node {fitting} as they are"


def _both(one: Found, other: Found) -> Found:
    reliefs = sorted((*one.reliefs, *other.reliefs), key=lambda relief: len(relief.moves))
    return Found(tuple(reliefs), one.candidates + other.candidates)


def _freed(moving: Moving, reliefs: Iterable[Relief]) -> tuple[Freed, ...]:
    return tuple(
        Freed(
            node=each.node,
            index=each.index,
            moves=tuple(_moved(moving, move) for move in each.moves),
            idle=each.idle,
        )
        for each in reliefs
    )


def _moved(moving: Moving, move: Move) -> MovedPod:
    resources = moving.account.account_of(move.place.node).resources.values()
    indexes = {gpu.name: gpu.index for each in resources for gpu in each.offer.gpus}
    return MovedPod(
        namespace=move.pod.namespace,
        pod=move.pod.name,
        controller=moving.controller(move.pod),
        amounts=move.pod.request.amounts,
        to_node=move.place.node,
        to_gpus=tuple(sorted({indexes[share.gpu] for share in move.place.shares})),
    )
