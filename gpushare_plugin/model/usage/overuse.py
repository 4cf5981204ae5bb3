"""Episodes of overuse, and which pod has to go for one: by what containers use, and since when."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpushare_plugin.foundation.structs import replace
from gpushare_plugin.model.usage.usage import ContainerUsage


class Place(NamedTuple):
    """Where an episode is: a container of a pod on a GPU."""

    namespace: str
    pod: str
    uid: str
    container: str
    gpu: str


class Episode(NamedTuple):
    """A container that uses more than it may, as it was last seen, and since when, in seconds of any clock."""

    usage: ContainerUsage
    since: float


class Turn(NamedTuple):
    """The episodes that began, and those that ended, each as the container was last seen."""

    began: tuple[ContainerUsage, ...]
    ended: tuple[ContainerUsage, ...]


def place(usage: ContainerUsage) -> Place:
    """Return where something is used."""
    return Place(usage.namespace, usage.pod, usage.uid, usage.container, usage.gpu)


class Episodes:
    """The episodes that go on.

    An episode ends when the container is within its limit or gone, then without memory in use; not while it is unknown
    what the container uses.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.current: Mapping[Place, Episode] = {}

    def follow(self, containers: Iterable[ContainerUsage], now: float) -> Turn:
        """Take in what containers use now, and return which episodes began and which ended."""
        found = {place(usage): usage for usage in containers}
        before = self.current
        going_on = {
            at: Episode(usage, before[at].since if at in before else now)
            for at, usage in found.items()
            if usage.over or (usage.used is None and at in before)
        }
        self.current = going_on
        gone = {at: replace(episode.usage, used=0) for at, episode in before.items()}
        return Turn(
            tuple(episode.usage for at, episode in going_on.items() if at not in before),
            tuple(found.get(at, gone[at]) for at in before if at not in going_on),
        )


def to_evict(
    episodes: Iterable[Episode],
    containers: Sequence[ContainerUsage],
    now: float,
    grace: float,
    settled: Collection[str],
) -> list[ContainerUsage]:
    """Return which pods have to go now, each as the container of it that is furthest over its limit.

    Only pods that hold units of ours are among them, after `grace` seconds, and never two on a GPU at a time: where a
    pod is `settled` (by UID), for it was evicted and is not gone yet, its GPUs wait. The one furthest over comes first.
    """
    gpus_of = {usage.uid: {each.gpu for each in containers if each.uid == usage.uid} for usage in containers}
    busy = {gpu for uid in settled for gpu in gpus_of.get(uid, ())}
    chosen = []
    for usage, since in sorted(episodes, key=lambda episode: (-episode.usage.excess, place(episode.usage))):
        waits = usage.used is None or now - since < grace or not usage.uid
        if waits or usage.uid in settled or not busy.isdisjoint(gpus_of.get(usage.uid, {usage.gpu})):
            continue
        busy |= gpus_of.get(usage.uid, {usage.gpu})
        chosen.append(usage)
    return chosen
