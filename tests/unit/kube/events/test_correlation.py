"""Tests of `gpushare_plugin.kube.events.correlation`: client-go's rules, in their numbers."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.kube.events.correlation import (
    BURST,
    COMBINED,
    REFILL,
    SIMILAR_WITHIN,
    Correlator,
    unique_name,
)
from gpushare_plugin.kube.events.event import Event, of_node, of_pod

NODE = of_node("gpu-1")
POD = of_pod("team", "one", "uid-1")


def event(message: str = "it failed", regarding: object = NODE, reason: str = "GpuUnhealthy") -> Event:
    """Return an Event."""
    assert regarding in {NODE, POD}
    return Event(NODE if regarding == NODE else POD, reason, "Warning", "Allocate", message)


def correlator() -> Correlator:
    """Return one that names Events by numbers."""
    numbers = count()
    return Correlator(lambda name: f"{name}.{next(numbers)}")


def test_an_event_that_repeats_raises_the_count() -> None:
    """One Event has the name, the first time and the count of all that say the same of the same object."""
    seen = correlator()
    sent = [seen.observe(event(), at) for at in (10.0, 20.0, 30.0)]
    assert [(each.name, each.first, each.last, each.count) for each in sent if each] == [
        ("gpu-1.0", 10.0, 10.0, 1),
        ("gpu-1.0", 10.0, 20.0, 2),
        ("gpu-1.0", 10.0, 30.0, 3),
    ]


def test_another_object_reason_or_message_is_another_event() -> None:
    """Nothing is counted as what it is not."""
    seen = correlator()
    different = [event(), event("another"), event(reason="GpuHealthy"), event(regarding=POD)]
    assert [each.name for one in different if (each := seen.observe(one, 0))] == [
        "gpu-1.0",
        "gpu-1.1",
        "gpu-1.2",
        "one.3",
    ]


def test_the_tenth_message_of_a_kind_is_combined_with_those_that_follow() -> None:
    """Messages that name a number each become one Event, whose message is the newest."""
    seen = correlator()
    sent = [seen.observe(event(f"unit {number}"), number) for number in range(12)]
    assert [each.event.message for each in sent if each][8:] == [
        "unit 8",
        *(f"{COMBINED}unit {number}" for number in range(9, 12)),
    ]
    assert [(each.name, each.count) for each in sent if each][9:] == [("gpu-1.9", 1), ("gpu-1.9", 2), ("gpu-1.9", 3)]
    known = seen.observe(event("unit 3"), 13)
    assert known is not None
    assert (known.event.message, known.name, known.count) == ("unit 3", "gpu-1.3", 2)


def test_messages_are_told_apart_again_after_ten_quiet_minutes() -> None:
    """A combination is over when nothing like it has happened for long enough."""
    seen = correlator()
    for number in range(12):
        seen.observe(event(f"unit {number}"), 0)
    still = seen.observe(event("unit 12"), SIMILAR_WITHIN)
    again = seen.observe(event("unit 13"), 2 * SIMILAR_WITHIN + 1)
    assert [each.event.message for each in (still, again) if each] == [f"{COMBINED}unit 12", "unit 13"]


def test_an_object_has_a_burst_and_then_one_event_in_five_minutes() -> None:
    """What is too much for one object is not sent, counts nevertheless, and takes nothing from another object."""
    seen = correlator()
    assert all(seen.observe(event(), 0) for _ in range(BURST))
    assert seen.observe(event(), REFILL - 1) is None
    after = seen.observe(event(), REFILL)
    assert after is not None
    assert after.count == BURST + 2
    assert seen.observe(event(), REFILL) is None
    assert seen.observe(event(regarding=POD), REFILL) is not None


@given(st.lists(st.tuples(st.sampled_from("abcdefghijklmnop"), st.floats(0, 200)), max_size=80))
def test_an_object_never_has_more_than_its_allowance(steps: list[tuple[str, float]]) -> None:
    """Whatever happens when, no stretch of time has more Events than the burst and what was refilled in it."""
    seen, now, sent = correlator(), 0.0, []
    for message, pause in steps:
        now += pause
        if (series := seen.observe(event(message), now)) is not None:
            sent.append((now, series))
    assert all(
        len(sent[first : last + 1]) <= BURST + (sent[last][0] - sent[first][0]) / REFILL + 1e-6
        for first in range(len(sent))
        for last in range(first, len(sent))
    )
    names: dict[str, int] = {}
    for _, series in sent:
        assert series.count > names.get(series.name, 0)
        names[series.name] = series.count


def test_names_of_events_are_valid_and_differ() -> None:
    """Also about an object with the longest name that Kubernetes allows."""
    names = {unique_name("a" * 235 + "." + "b" * 17) for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) <= 253 and ".." not in name for name in names)
