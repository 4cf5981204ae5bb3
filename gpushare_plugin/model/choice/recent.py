"""What containers were allocated, until the kubelet is known to count it, or nobody holds it any more.

When somebody lists pod-resources and a pod has ended, the kubelet works out anew what is allocated, from what
containers have (`UpdateAllocatedDevices` in pkg/kubelet/cm/devicemanager). What it is allocating at that moment is not
among that: the container gets it nevertheless, and later pods are offered it as available until another pod ends.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import cache

from gpushare_plugin.model.resource import Resource

Moment = Mapping[str, int]
"""How many calls there were for each resource."""


class RecentAllocations:
    """Remembers IDs from `Allocate` on, for all resources of a node; never more than the units that these list.

    The kubelet allocates to one container at a time, so another call for a resource shows that the former container has
    its units, or will never have them.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._calls: Counter[str] = Counter()
        # By resource: the ID, and the number of the call that allocated it.
        self._allocated: dict[str, dict[str, int]] = {}
        self._shown: set[str] = set()
        self._answering = 0
        self._preferred = False
        self._unwritten: frozenset[str] = frozenset()

    @contextmanager
    def call(self, resource: str, *, allocates: bool) -> Iterator[None]:
        """Count a call of the kubelet that is answered within the block: it `allocates`, or asks what is preferred."""
        self._calls[resource] += 1
        self._answering += 1
        # What is preferred is allocated next.
        self._preferred = not allocates
        try:
            yield
        except BaseException:
            self._preferred = False
            raise
        finally:
            self._answering -= 1

    def allocated(self, resource: str, ids: Collection[str]) -> None:
        """Remember what a container gets by the current call."""
        self._allocated.setdefault(resource, {}).update(dict.fromkeys(ids, self._calls[resource]))
        self._shown.difference_update(ids)
        self._unwritten = frozenset(ids)

    def doubtful(self, resource: Resource, available: Collection[str], must_include: Collection[str]) -> frozenset[str]:
        """Return which of the IDs that the kubelet takes to be available a container may hold.

        An ID that is not offered beside others of its GPU is counted: from now on, it is offered only when it is free.
        """
        allocated = self._allocated.get(resource.name)
        if not allocated:
            return frozenset()
        # A container holds those of its pod's init containers, and they say nothing of others: NUMA nodes chose them.
        offered = set(available).difference(must_include)
        missing = allocated.keys() - offered - set(must_include) - resource.retired.keys()
        offers = cache(lambda gpu: any(unit.id in offered for unit in resource.units.of(gpu)))
        units = resource.units.by_id
        self._forget(resource.name, [id_ for id_ in missing if id_ not in units or offers(units[id_].gpu)])
        return frozenset(offered.intersection(allocated))

    @property
    def now(self) -> Moment:
        """This moment, for what is read from now on."""
        return self._calls.copy()

    def learn(self, held: AbstractSet[tuple[str, str]], since: Moment) -> None:
        """Forget what nobody holds by what was read since a moment, as resource and ID.

        It was held once, or the kubelet had gone on to another container when the reading began.
        """
        for resource, allocated in self._allocated.items():
            shown = {id_ for id_ in allocated if (resource, id_) in held}
            over = since.get(resource, 0)
            self._forget(
                resource,
                [id_ for id_, call in allocated.items() if id_ not in shown and (id_ in self._shown or call < over)],
            )
            self._shown |= shown

    def _forget(self, resource: str, ids: Collection[str]) -> None:
        for id_ in ids:
            del self._allocated[resource][id_]
        self._shown.difference_update(ids)

    @property
    def answering(self) -> bool:
        """Whether a call is being answered, or one is to come that allocates what was preferred."""
        return self._answering > 0 or self._preferred

    @property
    def unwritten(self) -> frozenset[str]:
        """What the last call allocated, until it is known that the kubelet has written it down."""
        return self._unwritten

    def written(self) -> None:
        """Note that the kubelet does not allocate any more what it did, or is not waited for."""
        self._preferred, self._unwritten = False, frozenset()
