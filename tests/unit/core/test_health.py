"""Tests of `gpushare_plugin.core.health`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.health import CardHealth, Fault, Probe, XidPolicy, XidVerdict

GOOD, LOST = Probe(), Probe("GPU is lost", lost=True)


@pytest.mark.parametrize(
    ("policy", "xid", "verdict"),
    [
        (XidPolicy(), 13, "ignore"),
        (XidPolicy(), 79, "until reset"),
        (XidPolicy(), 94, "ignore"),
        (XidPolicy(), 109, "until reset"),
        (XidPolicy(ignored=frozenset({109})), 109, "ignore"),
        (XidPolicy(watched=frozenset({94})), 94, "until recovery"),
        (XidPolicy(), 56, "until recovery"),
        (XidPolicy(ignored=None), 56, "ignore"),
        (XidPolicy(ignored=None, watched=frozenset({56})), 56, "until recovery"),
        (XidPolicy(watched=None), 13, "until recovery"),
        (XidPolicy(ignored=frozenset({56})), 56, "ignore"),
        (XidPolicy(until_reset=frozenset({56})), 56, "until reset"),
    ],
)
def test_the_policy_says_what_an_xid_means(policy: XidPolicy, xid: int, verdict: XidVerdict) -> None:
    """Errors of applications are ignored, what is watched wins over what is ignored, the rest is a fault (ADR 16)."""
    assert policy.verdict(xid) == verdict


def probed(health: CardHealth, *probes: Probe) -> CardHealth:
    """Take note of several probes."""
    for probe in probes:
        health.probed(probe)
    return health


def test_a_fault_ends_after_good_probes_in_a_row() -> None:
    """Recovery is believed the third time, and a bad probe between starts the count again."""
    health = CardHealth(good_probes=3)
    health.report(Fault("XID 56"))
    assert probed(health, GOOD, GOOD).fault == Fault("XID 56")
    assert probed(health, Probe("Unknown error"), GOOD, GOOD).fault == Fault("Unknown error")
    assert probed(health, GOOD).fault is None


def test_a_new_fault_starts_the_count_again() -> None:
    """A card that fails between two probes is not well."""
    health = CardHealth(good_probes=2)
    health.report(Fault("XID 56"))
    probed(health, GOOD)
    health.report(Fault("XID 56"))
    assert probed(health, GOOD).fault is not None


def test_a_fault_that_needs_a_reset_outlives_good_probes() -> None:
    """Answering is not enough; being lost and back is a reset."""
    health = CardHealth(good_probes=1)
    health.report(Fault("XID 79", until_reset=True))
    assert probed(health, *[GOOD] * 10).fault == Fault("XID 79", until_reset=True)
    assert probed(health, LOST, GOOD).fault is None


def test_the_driver_decides_whether_a_fault_needs_a_reset() -> None:
    """A driver that says no reset is needed ends the fault; one that says it is keeps any fault."""
    health = CardHealth(good_probes=1)
    health.report(Fault("XID 79", until_reset=True))
    assert probed(health, Probe(needs_reset=False)).fault is None
    health.report(Fault("XID 56"))
    assert probed(health, Probe(needs_reset=True)).fault is not None


def test_a_card_whose_driver_asks_for_a_reset_is_at_fault() -> None:
    """No event is needed: after a restart of ours the driver still remembers."""
    fault = probed(CardHealth(), Probe(needs_reset=True)).fault
    assert fault is not None
    assert fault.until_reset


def test_a_lighter_fault_does_not_hide_a_graver_one() -> None:
    """A card that needs a reset still needs it after another event."""
    health = CardHealth(good_probes=1)
    health.report(Fault("XID 79", until_reset=True))
    health.report(Fault("XID 56"))
    assert probed(health, GOOD).fault == Fault("XID 56", until_reset=True)


def test_a_bad_probe_alone_is_a_fault() -> None:
    """No event is needed to notice a card that does not answer."""
    assert probed(CardHealth(), LOST).fault == Fault("GPU is lost")


@given(st.integers(1, 5), st.lists(st.sampled_from(["good", "bad", "event"])))
def test_a_healthy_card_has_answered_long_enough(good_probes: int, happenings: list[str]) -> None:
    """After any history: without a fault there never was one, or the last probes were all good."""
    health = CardHealth(good_probes=good_probes)
    for happening in happenings:
        if happening == "event":
            health.report(Fault("XID 56"))
        else:
            health.probed(GOOD if happening == "good" else Probe("no answer"))
    last = happenings[-good_probes:]
    ever = {"bad", "event"} & set(happenings)
    assert (health.fault is None) == (not ever or (last == ["good"] * good_probes))
