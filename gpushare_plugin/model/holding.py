"""What containers of a node hold, as the kubelet shows it: one type, for whoever wants to know what is free or whose.

The kubelet has two records. Pod-resources names pods, and has neither UIDs nor init containers; its checkpoint has
both, and for a while pods that have ended, and names no pod. `combined` makes one of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.unit import Unit, parse_unit

ONLY_RECORDED = "a pod that only the kubelet's checkpoint shows"
"""What people are told of a pod that has no name there: of an init container, one not shown yet, or one that ended."""


class Slot(NamedTuple):
    """The place for the units of one resource that a container of a pod asks for."""

    uid: str
    """The UID of the pod, as the kubelet has it."""
    container: str
    """The name of the container."""
    resource: str
    """The name of the resource."""


class Holding(NamedTuple):
    """The units of one resource that one container holds."""

    namespace: str
    """The namespace of the pod; empty where only the checkpoint shows the pod."""
    pod: str
    """The name of the pod; empty where only the checkpoint shows the pod."""
    container: str
    """The name of the container; empty where only a device list shows the units."""
    resource: str
    """The name of the resource."""
    ids: frozenset[str]
    """The IDs of the units."""
    uid: str = ""
    """The UID of the pod, as the kubelet has it; empty where it is not known."""
    container_id: str = ""
    """The ID of the container, as its runtime has it; empty where it is not known."""

    @property
    def slot(self) -> Slot:
        """The place that the units are in."""
        return Slot(self.uid, self.container, self.resource)

    @property
    def only_recorded(self) -> bool:
        """Whether only the checkpoint shows the pod."""
        return not self.pod

    @property
    def label(self) -> str:
        """The pod, as people name it."""
        return ONLY_RECORDED if self.only_recorded else f"{self.namespace}/{self.pod}"

    def units(
        self, gpus: Mapping[str, int | None], listed: Callable[[str], Unit | None] = lambda _: None
    ) -> Iterator[Unit]:
        """Yield the units, on GPUs with these NUMA nodes by UUID: as they are `listed`, by ID, or as their IDs say.

        IDs that are no unit's are left out.
        """
        # Thousands of units are looked up; only those that are listed no more are parsed, which takes 40 times as long.
        found = (listed(id_) or parse_unit(id_, gpus) for id_ in self.ids)
        return (unit for unit in found if unit is not None)


Holdings = tuple[Holding, ...]
"""What containers of a node hold."""


class Unknown(Struct, frozen=True):
    """That it is not known what containers hold, or whether they hold no more than is known."""

    reason: str = ""
    """Why, for people; empty where nobody has asked."""
    answered: bool = False
    """Whether the kubelet answers: a checkpoint that it writes from now on confirms what is free."""


class Confirmed(Struct, frozen=True):
    """All that containers held at a time: a unit that is not among it was free."""

    holdings: Holdings
    """What containers held; of units that several have, such as init containers, each is there once."""
    asked_at: float
    """The time, in seconds of any clock."""
    ids: frozenset[str]
    """The IDs of all units that were held."""

    @classmethod
    def of(cls, holdings: Holdings, asked_at: float) -> "Confirmed":
        """Return that these are all holdings."""
        return cls(holdings, asked_at, _ids(holdings))

    @property
    def only_recorded(self) -> frozenset[str]:
        """The IDs of the units that only the checkpoint shows to be held."""
        return _ids(each for each in self.holdings if each.only_recorded)

    def holders(self, ids: frozenset[str]) -> frozenset[str]:
        """Return the pods that hold units with these IDs, as people name them."""
        return frozenset(each.label for each in self.holdings if not each.ids.isdisjoint(ids))


def combined(shown: Iterable[Holding], recorded: Iterable[Holding]) -> Holdings:
    """Return what containers hold by both records of the kubelet.

    First what the checkpoint has `recorded` and pod-resources has not `shown`, which has no names of pods; then what it
    has shown, with the UIDs that the checkpoint has, empty where it has none.
    """
    shown, recorded = [each for each in shown if each.ids], tuple(recorded)
    # No two containers have a unit at a time, but for those of one pod.
    uids: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for each in recorded:
        uids[each.container, each.resource].update(dict.fromkeys(each.ids, each.uid))
    named = (each._replace(uid=uids[each.container, each.resource].get(min(each.ids), "")) for each in shown)
    seen = _ids(shown)
    rest = (each._replace(ids=left) for each in recorded if (left := each.ids - seen))
    return (*rest, *named)


def held_by_shown(holdings: Iterable[Holding]) -> frozenset[tuple[str, str]]:
    """Return all that pods hold which pod-resources shows, init containers included, as resource and ID."""
    holdings = tuple(holdings)
    uids = {each.uid for each in holdings if not each.only_recorded}
    return frozenset((each.resource, id_) for each in holdings if each.uid in uids for id_ in each.ids)


def _ids(holdings: Iterable[Holding]) -> frozenset[str]:
    return frozenset[str]().union(*(each.ids for each in holdings))
