"""The holdings of the containers of a node, as the kubelet shows them: a single type for free and held units.

The kubelet has two records. The pod-resources API names pods, but has neither UIDs nor init containers. The checkpoint
has UIDs and init containers, and for a while pods that have ended, but names no pod. `combined` joins the two records.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.unit import Unit, parse_unit

ONLY_RECORDED = "a pod that only the kubelet's checkpoint shows"
"""The words for a pod without a name: the unit is an init container's, or the pod is not shown yet or has ended."""

CLAIM = "claim:"
"""What stands before the name of a claim where units have the name of a resource; as in the status of pods."""


class Slot(NamedTuple):
    """One resource of one container: what a request of the container asks for, and what a holding fills."""

    uid: str
    """The kubelet's UID of the pod."""
    container: str
    """The name of the container."""
    resource: str
    """The name of the resource."""


class Holding(NamedTuple):
    """The units of one resource, or the devices of one claim, held by one container."""

    namespace: str
    """The namespace of the pod; empty where only the checkpoint shows the pod."""
    pod: str
    """The name of the pod; empty where only the checkpoint shows the pod."""
    container: str
    """The name of the container; empty where only a device list shows the units."""
    resource: str
    """The name of the resource; of a claim, the name of the claim after CLAIM."""
    ids: frozenset[str]
    """The IDs of the units, or of the devices, see `claimed_device_id`."""
    uid: str = ""
    """The kubelet's UID of the pod; empty where unknown."""
    container_id: str = ""
    """The container runtime's ID of the container; empty where unknown."""

    @property
    def slot(self) -> Slot:
        """The slot that the units fill."""
        return Slot(self.uid, self.container, self.resource)

    @property
    def claim(self) -> str:
        """The name of the claim, in the namespace of the pod; empty for units."""
        return self.resource.removeprefix(CLAIM) if self.resource.startswith(CLAIM) else ""

    @property
    def only_recorded(self) -> bool:
        """Whether only the checkpoint shows the pod."""
        return not self.pod

    @property
    def label(self) -> str:
        """The name of the pod for people: `namespace/name`, or ONLY_RECORDED."""
        return ONLY_RECORDED if self.only_recorded else f"{self.namespace}/{self.pod}"

    def units(
        self, gpus: Mapping[str, int | None], listed: Callable[[str], Unit | None] = lambda _: None
    ) -> Iterator[Unit]:
        """Yield the held units: the unit that `listed` returns for an ID, or else the unit parsed from the ID.

        `gpus` are the NUMA nodes of GPUs by UUID. IDs that name no unit are left out.
        """
        # Thousands of units are looked up; only units no longer listed are parsed, which takes 40 times as long.
        found = (listed(id_) or parse_unit(id_, gpus) for id_ in self.ids)
        return (unit for unit in found if unit is not None)


Holdings = tuple[Holding, ...]
"""The holdings of all containers of a node."""


class Unknown(Struct, frozen=True):
    """A lack of knowledge: the holdings of containers are unknown, or possibly incomplete."""

    reason: str = ""
    """The reason, for people; empty where nobody has asked the kubelet."""
    answered: bool = False
    """Whether the kubelet answers: then the next checkpoint of the kubelet confirms the free units."""


class Confirmed(Struct, frozen=True):
    """All holdings of containers at a time: every other unit was free."""

    holdings: Holdings
    """The holdings. A unit held by several containers of a pod, for example by an init container, appears once."""
    asked_at: float
    """The time, in seconds of any clock."""
    ids: frozenset[str]
    """The IDs of all held units."""

    @classmethod
    def of(cls, holdings: Holdings, asked_at: float) -> "Confirmed":
        """Return `holdings` as all holdings at the time `asked_at`."""
        return cls(holdings, asked_at, _ids(holdings))

    @property
    def only_recorded(self) -> frozenset[str]:
        """The IDs of the units that are held according to the checkpoint only."""
        return _ids(each for each in self.holdings if each.only_recorded)

    def holders(self, ids: frozenset[str]) -> frozenset[str]:
        """Return the names, for people, of the pods that hold units with IDs in `ids`."""
        return frozenset(each.label for each in self.holdings if not each.ids.isdisjoint(ids))


def claimed_device_id(driver: str, pool: str, device: str, share_id: str | None) -> str:
    """Return the ID of a device, or of a share of a device, that a claim has of a DRA driver."""
    return "/".join((driver, pool, device, share_id or ""))


def combined(shown: Iterable[Holding], recorded: Iterable[Holding]) -> Holdings:
    """Return the holdings of containers from both records of the kubelet.

    Holdings only `recorded` by the checkpoint come first and have no pod name. Then come the holdings `shown` by
    pod-resources, with UIDs from the checkpoint, or empty UIDs where the checkpoint has none.
    """
    shown, recorded = [each for each in shown if each.ids], tuple(recorded)
    # No two containers hold a unit at the same time, except containers of one pod.
    uids: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for each in recorded:
        uids[each.container, each.resource].update(dict.fromkeys(each.ids, each.uid))
    named = (each._replace(uid=uids[each.container, each.resource].get(min(each.ids), "")) for each in shown)
    seen = _ids(shown)
    rest = (each._replace(ids=left) for each in recorded if (left := each.ids - seen))
    return (*rest, *named)


def held_by_shown(holdings: Iterable[Holding]) -> frozenset[tuple[str, str]]:
    """Return the resource and ID of every unit held by pods in pod-resources, init containers included."""
    holdings = tuple(holdings)
    uids = {each.uid for each in holdings if not each.only_recorded}
    return frozenset((each.resource, id_) for each in holdings if each.uid in uids for id_ in each.ids)


def _ids(holdings: Iterable[Holding]) -> frozenset[str]:
    return frozenset[str]().union(*(each.ids for each in holdings))
