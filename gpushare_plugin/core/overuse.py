"""Episodes of overuse, by the usage of containers, and the choice of pods to evict."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.usage import ContainerUsage


class Overuser(NamedTuple):
    """Who may exceed a memory limit: a container of a pod on a GPU."""

    namespace: str
    """The namespace of the pod."""
    pod: str
    """The name of the pod."""
    uid: str
    """The UID of the pod."""
    container: str
    """The name of the container; empty for all containers of the pod together."""
    gpu: str
    """The UUID of the GPU."""


class Episode(NamedTuple):
    """An episode of overuse: a container that exceeds its memory limit."""

    usage: ContainerUsage
    """The usage of the container at the last look."""
    since: float
    """When the episode began, in seconds of any clock."""


class Turn(NamedTuple):
    """The episodes that began or ended at a look."""

    began: tuple[ContainerUsage, ...]
    """The usage of containers at the beginning of an episode."""
    ended: tuple[ContainerUsage, ...]
    """The usage of containers at the end of an episode."""


def overuser(usage: ContainerUsage) -> Overuser:
    """Return whose usage it is."""
    return Overuser(usage.namespace, usage.pod, usage.uid, usage.container, usage.gpu)


class Episodes:
    """The current episodes of overuse.

    An episode ends when the container no longer exceeds its limit by more than the tolerance, or is gone; the usage at
    the end of a gone container has no memory in use. While the usage of the container is unknown, the episode
    continues.
    """

    def __init__(self) -> None:
        """Begin without episodes."""
        self.current: Mapping[Overuser, Episode] = {}
        """The current episodes, by the container on its GPU."""

    def follow(self, containers: Iterable[ContainerUsage], now: float) -> Turn:
        """Take in the usage of `containers` at the time `now`; return the episodes that began and ended."""
        found = {overuser(usage): usage for usage in containers}
        before = self.current
        going_on = {
            who: Episode(usage, before[who].since if who in before else now)
            for who, usage in found.items()
            if usage.over or (usage.used is None and who in before)
        }
        self.current = going_on
        gone = {who: replace(episode.usage, used=0) for who, episode in before.items()}
        return Turn(
            tuple(episode.usage for who, episode in going_on.items() if who not in before),
            tuple(found.get(who, gone[who]) for who in before if who not in going_on),
        )


def to_evict(
    episodes: Iterable[Episode],
    containers: Sequence[ContainerUsage],
    now: float,
    grace: float,
    settled: Collection[str],
) -> list[ContainerUsage]:
    """Return the pods to evict now: for every pod the usage of its container furthest over the limit.

    Only pods with units of gpushare are evicted, and only after `grace` seconds of an episode. `settled` has the UIDs
    of pods that were evicted and are not gone yet: the GPUs of a settled pod wait for the end of the pod. Thus no two
    pods are evicted from a GPU at the same time. The pod furthest over its limit comes first.
    """
    gpus_of = {usage.uid: {each.gpu for each in containers if each.uid == usage.uid} for usage in containers}
    busy = {gpu for uid in settled for gpu in gpus_of.get(uid, ())}
    chosen = []
    for usage, since in sorted(episodes, key=lambda episode: (-episode.usage.excess, overuser(episode.usage))):
        waits = usage.used is None or now - since < grace or not usage.uid
        if waits or usage.uid in settled or not busy.isdisjoint(gpus_of.get(usage.uid, {usage.gpu})):
            continue
        busy |= gpus_of.get(usage.uid, {usage.gpu})
        chosen.append(usage)
    return chosen
