"""Which container a call of the kubelet is for, and which GPUs it was promised; pure.

The kubelet names no pod. It admits one pod at a time, its containers in order, so a call is for a container that asks
for just so many units and has not got them. Pods of equal size may swap: the promise that counts as used is the one
that was followed, and what is left of the promises is for the others.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpushare_plugin.model.account import pod as account_pod
from gpushare_plugin.model.account.pod import Comparison, Pod, comparison
from gpushare_plugin.model.grant import Recipient
from gpushare_plugin.model.holding import Slot
from gpushare_plugin.model.resource import Resource, UnitsOf

Held = Mapping[Slot, frozenset[str]]
"""The IDs of the units in each place that has some."""

_Spread = tuple[tuple[str, int], ...]
"""Units of each GPU, sorted, to be counted."""


class Candidate(NamedTuple):
    """A container that may be asking, and what it was promised, None for nothing."""

    pod: Pod
    slot: Slot
    promise: UnitsOf | None


def candidates(pods: Sequence[Pod], held: Held, resource: Resource, size: int, last: str | None) -> list[Candidate]:
    """Return the containers that may be asking for so many units, the likeliest first.

    `pods` are in the order in which they were bound; the one of the UID `last`, which got something last, comes first.
    """
    return [
        Candidate(pod, slot, promised(pod, resource).get(slot.container))
        for pod in sorted(pods, key=lambda pod: pod.uid != last)
        for slot in _slots(pod, resource.name, size)
        if not pod.ended and slot not in held
    ]


def _slots(pod: Pod, resource: str, size: int) -> Iterator[Slot]:
    for container in pod.request.containers:
        if container.amount(resource) == size:
            yield Slot(pod.uid, container.name, resource)


def promised(pod: Pod, resource: Resource) -> dict[str, UnitsOf]:
    """Return what each container of a pod was promised of a resource."""
    indexes = {str(gpu.index): uuid for uuid, gpu in resource.gpus.items()}
    kind = "cores" if resource.role == "cores" else ""
    return {**account_pod.promised(pod, resource.name, kind, indexes)}


def promises(pods: Sequence[Pod], held: Held, resource: Resource, asking: Sequence[Candidate]) -> list[UnitsOf]:
    """Return what those that are `asking` could be given, the best first.

    First what each was promised, unless another one has that; then what is left of the like promises of those that have
    something else; and in the end what each was promised, although another one has that, too: there may be room.
    """
    own = [each.promise for each in asking if each.promise is not None]
    if not own:
        return []
    left = _left(pods, held, resource, sum(own[0].values()))
    free = []
    for promise in own:
        if left[_spread(promise)] > 0:
            left[_spread(promise)] -= 1
            free.append(promise)
    shapes = {_shape(promise) for promise in own}
    others = [dict(spread) for spread, count in left.items() if count > 0 and _shape(dict(spread)) in shapes]
    return [*free, *others, *(promise for promise in own if promise not in free)]


def _left(pods: Iterable[Pod], held: Held, resource: Resource, size: int) -> Counter[_Spread]:
    """Return how often promises of one size are left: those made less those that promised pods make use of."""
    left: Counter[_Spread] = Counter()
    for pod in pods:
        slots = [] if pod.ended else list(_slots(pod, resource.name, size))
        promise = promised(pod, resource) if slots else {}
        for slot in slots:
            if slot.container in promise:
                left[_spread(promise[slot.container])] += 1
                if (ids := held.get(slot)) is not None:
                    left[_spread(resource.gpus_of(ids))] -= 1
    return left


def recipient(pods: Sequence[Pod], held: Held, resource: Resource, ids: Collection[str], last: str | None) -> Recipient:
    """Return what is known of the pod that gets these units."""
    asking = candidates(pods, held, resource, len(ids), last)
    reusing = _reusing(asking, held, ids)
    likely = reusing or [each for each in asking if each.pod.uid == last] or asking
    sums = {each.pod.request.amounts[resource.name] for each in likely}
    units = resource.gpus_of(ids)
    kept = any(promise == units for promise in promises(pods, held, resource, asking))
    return Recipient(sums.pop() if len(sums) == 1 else None, promised=bool(reusing) or kept)


def served(asking: Sequence[Candidate], held: Held, resource: Resource, ids: Collection[str]) -> Slot | None:
    """Return which of those that are asking counts as having got these units, None where none is asking.

    That is the pod that has them already, or else one to which they were promised.
    """
    units = resource.gpus_of(ids)
    kept = [each for each in asking if each.promise == units]
    return next((each.slot for each in (*_reusing(asking, held, ids), *kept, *asking)), None)


def _reusing(asking: Sequence[Candidate], held: Held, ids: Collection[str]) -> list[Candidate]:
    """Return those whose pod has all these units for an init container: the kubelet reuses any of them."""
    return [
        each
        for each in asking
        if any(
            container.kind == "init" and held.get(each.slot._replace(container=container.name), frozenset()) >= set(ids)
            for container in each.pod.request.containers
        )
    ]


def compared(pods: Iterable[Pod], held: Held, resource: Resource) -> Iterator[Comparison]:
    """Compare what pods that have not ended were promised of a resource with what they hold."""
    for pod in pods:
        if not pod.ended and (promise := promised(pod, resource)):
            slots = {container: Slot(pod.uid, container, resource.name) for container in promise}
            has = {container: resource.gpus_of(held[slot]) for container, slot in slots.items() if slot in held}
            yield comparison(pod, promise, has)


def _spread(units: UnitsOf) -> _Spread:
    return tuple(sorted((gpu, count) for gpu, count in units.items() if count))


def _shape(units: UnitsOf) -> tuple[int, ...]:
    """Return the numbers of units without their GPUs: only containers that were promised alike can swap."""
    return tuple(sorted(filter(None, units.values())))
