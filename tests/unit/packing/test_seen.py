"""Tests of what was seen of pods."""

from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.seen import SeenPods

SHARE, WHOLE_T4 = PodKind(1_000, 1_024, 1, 50), PodKind(1_000, 1_024, 2, 100, frozenset({"T4"}))


def test_lessons_come_less_often_and_then_every_thousand_pods() -> None:
    """A pod without GPUs counts for no lesson."""
    seen, lessons = SeenPods(), []
    for number in range(1, 4_001):
        assert not seen.see(PodKind(1_000, 1_024, 0))
        if seen.see(SHARE):
            lessons.append(number)
            seen.lesson()
    assert lessons == [100, 200, 400, 800, 1_600, 2_600, 3_600]


def test_who_sees_few_pods_can_learn_earlier() -> None:
    """Then, too, each lesson doubles the number of pods, up to a thousand more."""
    seen, lessons = SeenPods(first_lesson=10), []
    for number in range(1, 3_000):
        if seen.see(SHARE):
            lessons.append(number)
            seen.lesson()
    assert lessons == [10, 20, 40, 80, 160, 320, 640, 1_280, 2_280]


def test_what_was_seen_counts_half_after_each_lesson_from_the_thousandth_pod_on() -> None:
    """Shares by size, and demand by models; the first lessons halve nothing."""
    seen = SeenPods()
    for _ in range(400):
        seen.see(SHARE)
        if seen.see(WHOLE_T4):
            seen.lesson()
    assert (seen.shares, seen.demand) == ({50: 400}, {frozenset(): 20_000, frozenset({"T4"}): 80_000})
    for _ in range(400):
        seen.see(SHARE)
        if seen.see(WHOLE_T4):
            seen.lesson()
    assert (seen.shares, seen.demand) == ({50: 400}, {frozenset(): 20_000, frozenset({"T4"}): 80_000})
