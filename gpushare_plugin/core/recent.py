"""Recent allocations, remembered until the kubelet is known to count the units, or no container holds the units.

If a client lists pod-resources after a pod has ended, the kubelet computes the allocated devices again, from the
devices of containers (`UpdateAllocatedDevices` in pkg/kubelet/cm/devicemanager). The result lacks the units that the
kubelet is allocating at the moment. The container gets the units nevertheless, and the kubelet offers the units to
later pods as available until another pod ends.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import cache

from gpushare_plugin.core.resource import Resource

Moment = Mapping[str, int]
"""A moment, as the number of calls so far for each resource."""


class RecentAllocations:
    """Remembers IDs from `Allocate` on, for all resources of a node; never more IDs than the resources list.

    The kubelet allocates to one container at a time. So another call for a resource shows that the former container
    has its units, or will never get the units.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._calls: Counter[str] = Counter()
        # By resource: each ID with the number of its `Allocate` call.
        self._allocated: dict[str, dict[str, int]] = {}
        self._shown: set[str] = set()
        self._answering = 0
        self._preferred = False
        self._unwritten: frozenset[str] = frozenset()

    @contextmanager
    def call(self, resource: str, *, allocates: bool) -> Iterator[None]:
        """Count a call of the kubelet that is answered within the block: an `Allocate` call if `allocates` is true.

        Otherwise, the kubelet asks for the preferred units.
        """
        self._calls[resource] += 1
        self._answering += 1
        # The kubelet allocates the preferred units next.
        self._preferred = not allocates
        try:
            yield
        except BaseException:
            self._preferred = False
            raise
        finally:
            self._answering -= 1

    def allocated(self, resource: str, ids: Collection[str]) -> None:
        """Remember the units that a container gets by the current call."""
        self._allocated.setdefault(resource, {}).update(dict.fromkeys(ids, self._calls[resource]))
        self._shown.difference_update(ids)
        self._unwritten = frozenset(ids)

    def doubtful(self, resource: Resource, available: Collection[str], must_include: Collection[str]) -> frozenset[str]:
        """Return the IDs that a container may hold although the kubelet offers the IDs as `available`.

        A remembered ID is forgotten if the kubelet offers other units of the GPU, but not the ID. The kubelet counts
        the ID as allocated then, and from now on offers the ID only when the unit is free.
        """
        allocated = self._allocated.get(resource.name)
        if not allocated:
            return frozenset()
        # `must_include` holds units of the pod's init containers, which the container may get, and units chosen by NUMA
        # node. Neither shows whether the kubelet offers the other units of a GPU.
        offered = set(available).difference(must_include)
        missing = allocated.keys() - offered - set(must_include) - resource.retired.keys()
        offers = cache(lambda gpu: any(unit.id in offered for unit in resource.units.of(gpu)))
        units = resource.units.by_id
        self._forget(resource.name, [id_ for id_ in missing if id_ not in units or offers(units[id_].gpu)])
        return frozenset(offered.intersection(allocated))

    @property
    def now(self) -> Moment:
        """The current moment, as the beginning of a reading for `learn`."""
        return self._calls.copy()

    def learn(self, held: AbstractSet[tuple[str, str]], since: Moment) -> None:
        """Forget IDs that no container holds by `held`, the pairs of resource and ID read since the moment `since`.

        An ID missing in `held` is forgotten if an earlier reading showed the ID, or if the kubelet had gone on to
        another container when the reading began.
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
    def in_call(self) -> bool:
        """Whether a call is being answered."""
        return self._answering > 0

    @property
    def answering(self) -> bool:
        """Whether a call is being answered, or the `Allocate` call for preferred units is still to come."""
        return self.in_call or self._preferred

    @property
    def unwritten(self) -> frozenset[str]:
        """The IDs of the last `Allocate` call, until the kubelet is known to have written its checkpoint."""
        return self._unwritten

    def written(self) -> None:
        """Record that the kubelet has finished the last allocation, or that the wait for the kubelet is over."""
        self._preferred, self._unwritten = False, frozenset()
