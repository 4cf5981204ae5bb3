"""The pods on each node, and the pods waiting for evictions on each node, found without a search of all pods."""

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from gpushare_plugin.ledger.pod import Pod


class Presence:
    """The pods with units or promised units on each node, whether the node is known or not."""

    def __init__(self) -> None:
        """Know no pod yet."""
        self._there: dict[str, dict[str, None]] = {}
        self._owned: dict[str | None, dict[str, int]] = {}
        """The number of pods of each owner on each node; plain dicts, because making Counters would double the time."""

    def on(self, node: str) -> Collection[str]:
        """Return the UIDs of the pods on a node."""
        return self._there.get(node, {}).keys()

    def of(self, owner: str | None) -> AbstractSet[str]:
        """Return the nodes with pods of an owner."""
        return self._owned[owner].keys() if owner in self._owned else frozenset()

    def enter(self, pod: Pod, node: str) -> None:
        """Count a pod on a node."""
        self._there.setdefault(node, {})[pod.uid] = None
        if pod.owner is not None:
            owned = self._owned.setdefault(pod.owner, {})
            owned[node] = owned.get(node, 0) + 1

    def leave(self, pod: Pod, node: str) -> None:
        """Stop counting a pod on a node."""
        del self._there[node][pod.uid]
        if not self._there[node]:
            del self._there[node]
        if pod.owner is not None:
            owned = self._owned[pod.owner]
            owned[node] -= 1
            if not owned[node]:
                del owned[node]
            if not owned:
                del self._owned[pod.owner]


class Nominated:
    """The pods for which pods of a node are being evicted, by node."""

    def __init__(self) -> None:
        """Know no pod yet."""
        self._waiting: dict[str, dict[str, Pod]] = {}

    @property
    def nodes(self) -> AbstractSet[str]:
        """The nodes with waiting pods."""
        return self._waiting.keys()

    def replace(self, before: Pod | None, after: Pod | None) -> None:
        """Replace a pod by its newest state; None before the first state and after the last."""
        if before is not None and before.nominated in self._waiting:
            waiting = self._waiting[before.nominated]
            waiting.pop(before.uid, None)
            if not waiting:
                del self._waiting[before.nominated]
        if after is not None and after.nominated and after.node is None and not after.ended and not after.ending:
            self._waiting.setdefault(after.nominated, {})[after.uid] = after

    def ahead_of(self, pod: Pod, node: str) -> list[Pod]:
        """Return the pods waiting for a node with at least the priority of `pod`, the highest priority first."""
        others = [each for each in self._waiting.get(node, {}).values() if each.uid != pod.uid]
        return sorted((each for each in others if each.priority >= pod.priority), key=lambda each: -each.priority)
