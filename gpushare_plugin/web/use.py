"""What pages say of the use of GPUs, which the daemons of nodes measure; what nobody measured is unknown, and not 0."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.usage import ContainerUsage, Usage
from gpushare_plugin.observe.cluster.limits import ContainerLimit

Level = Literal["unknown", "idle", "low", "medium", "high", "full"]
"""How much of a GPU is used, in a word; a class of the style sheet."""

_UP_TO: Mapping[Level, float] = {"idle": 0.05, "low": 0.4, "medium": 0.7, "high": 0.9}
"""The part of a GPU below which each level is."""
LEVELS: Mapping[Level, str] = {
    "idle": "less than 5 % used",
    "low": "less than 40 % used",
    "medium": "less than 70 % used",
    "high": "less than 90 % used",
    "full": "90 % used or more",
    "unknown": "use unknown",
}
"""The levels in words: of memory and compute, the larger part counts."""
_UNKNOWN = "unknown"
_LONGEST_NAME = 63
"""The most characters of a container's name in Kubernetes."""
_GIB = 1 << 30


class UseReading(Struct, frozen=True):
    """The use of a node as the daemon of the node says, or why the use is unknown."""

    usage: Usage | None = None
    """The use; None while unknown."""
    problem: str = ""
    """Why the use is unknown, for people, without names of pods; empty where the use is known."""


NOT_READ = UseReading(problem="it is not read, because gpushare web was started without --daemon-metrics")


class UsedParts(Struct, frozen=True):
    """The used parts of a GPU, from 0 to 1; None where unknown."""

    memory: float | None = None
    """The used part of the memory."""
    compute: float | None = None
    """The part of the time in which the GPU computed."""

    @property
    def level(self) -> Level:
        """The level of the larger part."""
        known = [each for each in (self.memory, self.compute) if each is not None]
        if not known:
            return "unknown"
        return next((level for level, most in _UP_TO.items() if max(known) < most), "full")

    @property
    def in_words(self) -> str:
        """Both parts in words."""
        if self.level == "unknown":
            return "use unknown"
        return f"used: {percent(self.memory)} of memory, {percent(self.compute)} of compute"


Holder = tuple[str, str, str]
"""A namespace, a pod, and the UUID of a GPU."""
Holders = Mapping[Holder, Sequence[ContainerUsage]]
"""What the containers of each pod use of each GPU."""


class HeldUse(Struct, frozen=True):
    """What a pod, or the pods of a claim, use of a GPU, in words."""

    memory: str
    """The memory that each container uses."""
    compute: str
    """The part of the time in which each container computed."""
    limit: str
    """Whether the limit of each container is in effect."""


def used_parts(usage: Usage | None, uuids: Collection[str]) -> UsedParts:
    """Return the used parts of a GPU, or of the MIG instances of a card together."""
    gpus = [] if usage is None else [each for each in usage.gpus if each.uuid in uuids]
    totals = [each.memory_total for each in gpus if each.memory_total and each.memory_used is not None]
    memory = None
    if totals and len(totals) == len(uuids):
        memory = min(1.0, sum(each.memory_used or 0 for each in gpus) / sum(filter(None, totals)))
    return UsedParts(memory, max((each.utilization for each in gpus if each.utilization is not None), default=None))


def holders_of(usage: Usage | None) -> Holders:
    """Return the containers of a node by who holds what."""
    found: dict[Holder, list[ContainerUsage]] = {}
    for each in () if usage is None else usage.containers:
        found.setdefault((each.namespace, each.pod, each.gpu), []).append(each)
    return found


def containers_of(holders: Holders, namespace: str, pods: Iterable[str], gpu: str) -> list[ContainerUsage]:
    """Return the containers of pods of a namespace that use a GPU."""
    return [each for pod in pods for each in holders.get((namespace, pod, gpu), ())]


def held_use(
    holders: Holders, namespace: str, pods: Iterable[str], gpu: str, written: Iterable[ContainerLimit]
) -> HeldUse:
    """Return what pods of a namespace use of a GPU; what is written about their limits counts before the metrics."""
    containers = containers_of(holders, namespace, pods, gpu)
    limits = [each.effect for each in written] or [each.effect.words for each in containers if each.effect is not None]
    return HeldUse(
        _each(containers, [gib(each.used) for each in containers]),
        _each(containers, [percent(each.utilization) for each in containers]),
        "; ".join(limits) or _UNKNOWN,
    )


def used_mib(holders: Holders, namespace: str, pods: Iterable[str], gpu: str) -> int | None:
    """Return the MiB that pods of a namespace use of a GPU; None while unknown of one of their containers."""
    used = [each.used for each in containers_of(holders, namespace, pods, gpu)]
    return None if not used or None in used else sum(filter(None, used)) >> 20


def percent(part: float | None) -> str:
    """Return a part of a whole in words."""
    return _UNKNOWN if part is None else f"{100 * part:.0f} %"


def gib(amount: int | None) -> str:
    """Return bytes in words."""
    return _UNKNOWN if amount is None else f"{amount / _GIB:.1f} GiB"


def _each(containers: Iterable[ContainerUsage], words: Iterable[str]) -> str:
    named = [
        f"{each.container[:_LONGEST_NAME]}: {said}" if each.container else said
        for each, said in zip(containers, words, strict=True)
    ]
    return "; ".join(named) or _UNKNOWN
