"""The faults of GPUs that the pages have seen: what was wrong, since when, and until when.

Events of Kubernetes end after an hour, become one where several are alike, and take a right of their own. The record of
a node says at each moment what is wrong, so that the pages need nothing else.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.observe.cluster.report import NodeUse
from gpushare_plugin.observe.cluster.tables import gpu_states, is_fault
from gpushare_plugin.web.picture import PicturedNode
from gpushare_plugin.web.tiles import gpus_of

MOST_NODES = 512
"""The most nodes of which ended faults are kept; for one node more, those of the node with the oldest are forgotten."""
MOST_ENDED = 50
"""The most ended faults of a node that are kept."""

_Key = tuple[str, str]
"""The UUID of a GPU, and the fault in a few words."""


class SeenFault(Struct, frozen=True):
    """A fault of a GPU, as the pages have seen it."""

    gpu: str
    """The index of the GPU; the UUID for a GPU without an index."""
    fault: str
    """The fault in a few words."""
    reason: str
    """The newest reason; empty for a fault that says all by itself."""
    began: datetime
    """The time at which the fault was seen first."""
    was_there: bool
    """Whether the fault was there already when the pages first saw the node, so that its beginning is not known."""
    ended: datetime | None = None
    """The time from which on the fault was not seen any more; None while the fault lasts."""
    vanished: bool = False
    """Whether the fault ended because the node does not list the GPU any more."""


class SeenFaults:
    """What was wrong with each GPU since the pages began to follow the cluster; bounded."""

    def __init__(self) -> None:
        """See nothing yet."""
        self.since: datetime | None = None
        """The time of the first nodes that were seen; None before."""
        self._nodes: Mapping[str, PicturedNode] = {}
        self._lasting: dict[str, dict[_Key, SeenFault]] = {}
        self._ended = RecentlyUsed[str, deque[SeenFault]](MOST_NODES)

    def take(self, nodes: Mapping[str, PicturedNode], now: datetime) -> None:
        """Take in the nodes as they are from now on."""
        if self.since is None:
            self.since = now
        for name in self._nodes.keys() - nodes.keys():
            self._end(name, self._lasting.pop(name, {}).values(), now, ())
        for name, node in nodes.items():
            before = self._nodes.get(name)
            if before is not node:
                self._compare(name, node.use, now, is_new=before is None)
        self._nodes = dict(nodes)

    def of(self, node: str) -> Sequence[SeenFault]:
        """Return the faults of a node, those that last first, then the newest first."""
        lasting = self._lasting.get(node, {}).values()
        ended = self._ended.get(node) or ()
        return [*sorted(lasting, key=lambda each: each.began, reverse=True), *reversed(ended)]

    def _compare(self, name: str, use: NodeUse, now: datetime, *, is_new: bool) -> None:
        before, after = self._lasting.pop(name, {}), dict[_Key, SeenFault]()
        for key, (label, reason) in _faults(use).items():
            known = before.pop(key, None) or SeenFault(label, key[1], reason, now, is_new)
            after[key] = replace(known, reason=reason)
        if after:
            self._lasting[name] = after
        self._end(name, before.values(), now, gpus_of(use))

    def _end(self, name: str, several: Iterable[SeenFault], now: datetime, listed: Container[str]) -> None:
        for each in several:
            ended = self._ended.get(name) or self._ended.put(name, deque(maxlen=MOST_ENDED))
            ended.append(replace(each, ended=now, vanished=each.gpu not in listed))


def _faults(use: NodeUse) -> Mapping[_Key, tuple[str, str]]:
    """Return the faults of the GPUs of a node, each with the index of the GPU and the reason."""
    return {
        (gpu.uuid, state): (label, _reason(gpu.reason or "", state))
        for label, several in gpus_of(use).items()
        for _, gpu in several
        for state in filter(is_fault, gpu_states(gpu))
    }


def _reason(reason: str, state: str) -> str:
    """Return why a GPU is in a state; empty for a state that is not the reason why nobody gets the GPU."""
    return reason.removeprefix(state).removeprefix(": ") if reason.startswith(state) else ""
