"""Tests of `gpushare_plugin.core.overuse`: episodes, and which pod has to go."""

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.overuse import Episodes, to_evict
from gpushare_plugin.core.usage import ContainerUsage

GIB = 1024 * MIB
GRACE = 60.0


def using(pod: str, gib: int | None, *, gpu: str = "GPU-0", limit: int = 2, uid: str | None = None) -> ContainerUsage:
    """Return what a container of a pod uses of a GPU, with a limit of `limit` GiB."""
    used = None if gib is None else gib * GIB
    return ContainerUsage(
        "default", pod, "main", f"uid-{pod}" if uid is None else uid, gpu, "r", limit, limit * GIB, used
    )


class TestEpisodes:
    """When an episode begins and ends."""

    def test_an_episode_begins_once_and_ends_once(self) -> None:
        """However often the container is seen over its limit, it is news twice: at the beginning and at the end."""
        episodes = Episodes()
        over, within = using("a", 4), using("a", 1)
        turns = [episodes.follow([usage], now) for now, usage in enumerate([within, over, over, within, within])]
        assert [(turn.began, turn.ended) for turn in turns] == [
            ((), ()),
            ((over,), ()),
            ((), ()),
            ((), (within,)),
            ((), ()),
        ]

    def test_an_episode_counts_from_its_beginning(self) -> None:
        """An episode is as old as the first look that saw it, and shows what was seen last."""
        episodes = Episodes()
        for now, gib in ((10.0, 4), (20.0, 5)):
            episodes.follow([using("a", gib)], now)
        assert [(each.since, each.usage.used) for each in episodes.current.values()] == [(10.0, 5 * GIB)]

    def test_a_container_that_is_gone_ends_its_episode(self) -> None:
        """The episode of a pod that ended is over."""
        episodes = Episodes()
        episodes.follow([using("a", 4)], 0)
        assert [each.used for each in episodes.follow([], 1).ended] == [0]

    def test_an_episode_goes_on_while_the_usage_is_unknown(self) -> None:
        """A look that does not show what the container uses neither ends an episode nor begins another."""
        episodes = Episodes()
        turns = [episodes.follow([using("a", gib)], now) for now, gib in enumerate([4, None, 4])]
        assert [len(turn.began) + len(turn.ended) for turn in turns] == [1, 0, 0]

    def test_a_pod_of_the_same_name_has_an_episode_of_its_own(self) -> None:
        """The episode of the pod that was replaced is over."""
        episodes = Episodes()
        episodes.follow([using("a", 4, uid="first")], 0)
        turn = episodes.follow([using("a", 4, uid="second")], 100)
        assert ([each.uid for each in turn.began], [each.uid for each in turn.ended]) == (["second"], ["first"])


class TestEviction:
    """Which pod has to go."""

    def chosen(
        self, *seen: list[ContainerUsage], settled: frozenset[str] = frozenset(), pause: float = GRACE
    ) -> list[str]:
        """Return the pods to evict after looks that are `pause` seconds apart."""
        episodes = Episodes()
        for turn, containers in enumerate(seen):
            episodes.follow(containers, turn * pause)
        now = (len(seen) - 1) * pause
        return [each.pod for each in to_evict(episodes.current.values(), seen[-1], now, GRACE, settled)]

    def test_a_pod_is_evicted_only_after_the_grace_period(self) -> None:
        """A pod has the grace period to get within its limit again."""
        over = [using("a", 4)]
        assert self.chosen(over, over, pause=GRACE - 1) == []
        assert self.chosen(over, over) == ["a"]
        assert self.chosen(over, [using("a", 1)], over) == []

    def test_the_pod_furthest_over_its_limit_is_evicted_first_and_alone(self) -> None:
        """Of several on a GPU only the worst goes; those on other GPUs do not wait for it."""
        now = [using("a", 4), using("b", 6), using("c", 5), using("d", 3, gpu="GPU-1")]
        assert self.chosen(now, now) == ["b", "d"]

    def test_the_pod_furthest_over_its_limit_is_found_in_bytes(self) -> None:
        """A pod is further over the more memory of others it has, whatever its own limit is."""
        now = [using("small", 3, limit=1), using("large", 11, limit=8)]
        assert self.chosen(now, now) == ["large"]

    def test_a_gpu_loses_no_other_pod_while_an_evicted_pod_is_going(self) -> None:
        """While an evicted pod still holds a GPU, no other pod of that GPU is evicted, nor is it evicted again."""
        now = [using("a", 4), using("b", 6), using("d", 3, gpu="GPU-1")]
        assert self.chosen(now, now, settled=frozenset({"uid-b"})) == ["d"]

    def test_a_pod_on_two_gpus_goes_once(self) -> None:
        """A pod that is over its limit on two GPUs is evicted once, and both GPUs wait for it."""
        now = [using("a", 4), using("a", 5, gpu="GPU-1"), using("b", 4, gpu="GPU-1")]
        assert self.chosen(now, now) == ["a"]

    def test_a_pod_of_unknown_usage_is_not_evicted(self) -> None:
        """A pod that is not known to be over its limit now stays."""
        assert self.chosen([using("a", 4)], [using("a", None)]) == []

    def test_a_pod_of_unknown_uid_is_not_evicted(self) -> None:
        """A pod that cannot be named for certain stays: another one may have its name by now."""
        now = [using("a", 4, uid="")]
        assert self.chosen(now, now) == []
