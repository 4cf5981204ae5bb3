"""Tests of `gpushare_plugin.sharing.withdrawal`."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.sharing.withdrawal import (
    LONGEST_WITHDRAWN_SECONDS,
    WITHDRAWN_SECONDS,
    Withdrawal,
    Withdrawals,
    withdrawn,
)

SLICE, RESOURCE = "00000000-10gb-0", "nvidia.com/gpu-10gb"
IDLE = {SLICE: RESOURCE}
NOTHING: frozenset[str] = frozenset()


def test_a_slice_begins_to_be_withdrawn_when_it_is_no_longer_wanted() -> None:
    """The withdrawal stops when the slice is wanted again, or a pod has it."""
    assert withdrawn({}, IDLE, NOTHING, 5.0, 5.0) == {SLICE: Withdrawal(5.0)}
    assert withdrawn({SLICE: Withdrawal(5.0, 5.5)}, {}, NOTHING, 9.0, 9.0) == {}


def test_a_withdrawal_ends_a_second_after_the_node_hid_the_slice() -> None:
    """By what the kubelet said then: what it said before can lack a pod that has the slice."""
    hidden = {SLICE: Withdrawal(5.0, 5.5)}
    end = 5.5 + WITHDRAWN_SECONDS
    assert withdrawn(hidden, IDLE, NOTHING, end - 0.1, end + 3) == hidden
    assert withdrawn(hidden, IDLE, NOTHING, end, end) == {}


def test_a_withdrawal_goes_on_while_the_node_shows_or_a_pod_asks_for_the_slice() -> None:
    """A pod that asks for another size does not count. But after ten seconds it ends whatever happens."""
    visible, hidden = {SLICE: Withdrawal(5.0)}, {SLICE: Withdrawal(5.0, 5.5)}
    end = 5.0 + LONGEST_WITHDRAWN_SECONDS
    for before, asked_for in ((visible, NOTHING), (hidden, frozenset({RESOURCE}))):
        assert withdrawn(before, IDLE, asked_for, end - 0.1, end) == before
        assert withdrawn(before, IDLE, asked_for, end, end) == {}
    assert withdrawn(hidden, IDLE, frozenset({"nvidia.com/gpu-20gb"}), 7.0, 7.0) == {}


def test_no_withdrawal_ends_while_holdings_are_unknown() -> None:
    """Then no slice is known to be idle."""
    hidden = {SLICE: Withdrawal(5.0, 5.5)}
    assert withdrawn(hidden, IDLE, NOTHING, None, 500.0) == hidden


_TIMES = st.floats(0, 100)


@settings(max_examples=50)
@given(
    st.dictionaries(st.integers(0, 5).map(str), st.builds(Withdrawal, _TIMES, st.none() | _TIMES)),
    st.dictionaries(st.integers(0, 5).map(str), st.sampled_from("ab")),
    st.frozensets(st.sampled_from("ab")),
    st.none() | _TIMES,
)
def test_a_wanted_slice_is_never_withdrawn(
    before: Withdrawals, idle: dict[str, str], asked_for: frozenset[str], asked_at: float | None
) -> None:
    """Withdrawn slices keep their times, and new slices are not retired at once."""
    found = withdrawn(before, idle, asked_for, asked_at, 100.0)
    assert found.keys() <= idle.keys()
    assert all(found[id_] == before[id_] for id_ in found.keys() & before.keys())
    assert idle.keys() - before.keys() <= found.keys()
    assert all(found[id_] == Withdrawal(100.0) for id_ in found.keys() - before.keys())
