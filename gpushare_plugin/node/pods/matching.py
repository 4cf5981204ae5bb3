"""The container behind a call of the kubelet, and the GPUs promised to the container; pure.

The kubelet names no pod in a call. The kubelet admits one pod at a time, the containers of the pod in order. A call is
therefore for a container that asks for exactly the number of units in the call and has no units yet. Pods of equal
size may swap their promises: the followed promise counts as used, and the unused promises are for the other pods.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpushare_plugin.core.grant import Recipient
from gpushare_plugin.core.holding import Slot
from gpushare_plugin.core.resource import Resource, UnitsOf
from gpushare_plugin.ledger import pod as account_pod
from gpushare_plugin.ledger.pod import Comparison, Pod, comparison

Held = Mapping[Slot, frozenset[str]]
"""The IDs of units by the place of the units in a container; places without units are missing."""

_Spread = tuple[tuple[str, int], ...]
"""Numbers of units by GPU, sorted, as a key for counts."""


class Candidate(NamedTuple):
    """A container possibly behind a call of the kubelet."""

    pod: Pod
    """The pod of the container."""
    slot: Slot
    """The place for the units in the container."""
    promise: UnitsOf | None
    """The units promised to the container, by GPU; None without a promise."""


def candidates(pods: Sequence[Pod], held: Held, resource: Resource, size: int, last: str | None) -> list[Candidate]:
    """Return the containers that may be asking for `size` units, the likeliest first.

    `pods` are in the order of their bindings. The pod with the UID `last`, the latest pod to get units, comes first.
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
    """Return the units of a resource promised to the containers of a pod, by the name of the container."""
    indexes = {str(gpu.index): uuid for uuid, gpu in resource.gpus.items()}
    kind = "cores" if resource.role == "cores" else ""
    return {**account_pod.promised(pod, resource.name, kind, indexes)}


def promises(pods: Sequence[Pod], held: Held, resource: Resource, asking: Sequence[Candidate]) -> list[UnitsOf]:
    """Return the units to try for the candidates in `asking`, the best first.

    First come the promises to the candidates, except promises used up by other containers. Then come unused promises of
    the same shape to containers that hold other units. Last come the used-up promises to the candidates: the GPUs may
    still have room.
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
    """Return how many equal promises of `size` units are unused: all promises less the units held by promised pods."""
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
    """Return the known facts about the pod that gets these units."""
    asking = candidates(pods, held, resource, len(ids), last)
    reusing = _reusing(asking, held, ids)
    likely = reusing or [each for each in asking if each.pod.uid == last] or asking
    sums = {each.pod.request.amounts[resource.name] for each in likely}
    units = resource.gpus_of(ids)
    kept = any(promise == units for promise in promises(pods, held, resource, asking))
    return Recipient(sums.pop() if len(sums) == 1 else None, promised=bool(reusing) or kept)


def served(asking: Sequence[Candidate], held: Held, resource: Resource, ids: Collection[str]) -> Slot | None:
    """Return the place of the container that counts as the recipient of these units, None without candidates.

    First choice is a pod that already has the units, then a container with a promise of the units, then any candidate.
    """
    units = resource.gpus_of(ids)
    kept = [each for each in asking if each.promise == units]
    return next((each.slot for each in (*_reusing(asking, held, ids), *kept, *asking)), None)


def _reusing(asking: Sequence[Candidate], held: Held, ids: Collection[str]) -> list[Candidate]:
    """Return the candidates whose pod has all these units in an init container: the kubelet reuses such units."""
    return [
        each
        for each in asking
        if any(
            container.kind == "init" and held.get(each.slot._replace(container=container.name), frozenset()) >= set(ids)
            for container in each.pod.request.containers
        )
    ]


def compared(pods: Iterable[Pod], held: Held, resource: Resource) -> Iterator[Comparison]:
    """Yield a comparison of promised and held units of a resource for every promised pod that has not ended."""
    for pod in pods:
        if not pod.ended and (promise := promised(pod, resource)):
            slots = {container: Slot(pod.uid, container, resource.name) for container in promise}
            has = {container: resource.gpus_of(held[slot]) for container, slot in slots.items() if slot in held}
            yield comparison(pod, promise, has)


def _spread(units: UnitsOf) -> _Spread:
    return tuple(sorted((gpu, count) for gpu, count in units.items() if count))


def _shape(units: UnitsOf) -> tuple[int, ...]:
    """Return the numbers of units without the GPUs: only containers with promises of equal shape can swap."""
    return tuple(sorted(filter(None, units.values())))
