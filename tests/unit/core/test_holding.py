"""Tests of `gpushare_plugin.core.holding`: both records of the kubelet as one, compared with each record by itself."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.holding import ONLY_RECORDED, Confirmed, Holding, combined, held_by_shown

IDS = [f"{number:08x}-1Gi-0" for number in range(12)]
RESOURCES = ("a/b", "a/c")


@st.composite
def records(draw: st.DrawFn) -> tuple[list[Holding], list[Holding]]:
    """Draw what pod-resources shows and what the checkpoint has.

    A unit is of one resource and of one pod, of several containers perhaps; either record may lack anything.
    """
    shown, recorded = list[Holding](), list[Holding]()
    owner = {id_: draw(st.integers(0, 3)) for id_ in IDS}
    for pod in range(4):
        for container in ("init", "main", "side"):
            for place, resource in enumerate(RESOURCES):
                has = [id_ for id_ in IDS if owner[id_] == pod and IDS.index(id_) % 2 == place]
                ids = frozenset(draw(st.lists(st.sampled_from(has)))) if has else frozenset[str]()
                if draw(st.booleans()):
                    shown.append(Holding("team", f"pod-{pod}", container, resource, ids))
                if draw(st.booleans()):
                    seen = ids | frozenset(draw(st.lists(st.sampled_from(has)))) if has else ids
                    of_pod = draw(st.sampled_from([f"uid-{pod}", ""]))
                    recorded.append(Holding("", "", container, resource, seen, of_pod))
    return shown, recorded


def uid(holding: Holding, recorded: Sequence[Holding]) -> str:
    """Return the UID of the pod that the checkpoint has for a container, looked up unit by unit."""
    uids = {(each.container, each.resource, id_): each.uid for each in recorded for id_ in each.ids}
    return uids.get((holding.container, holding.resource, min(holding.ids)), "")


@given(records())
def test_a_unit_has_the_holder_that_either_record_names(both: tuple[list[Holding], list[Holding]]) -> None:
    """A pod that pod-resources shows has its name; what else the checkpoint has is held, too, nothing twice."""
    shown, recorded = both
    expected = {id_: ONLY_RECORDED for each in recorded for id_ in each.ids}
    expected |= {id_: each.label for each in shown for id_ in each.ids}
    found = Confirmed.of(combined(shown, recorded), 1.0)
    assert {id_: each.label for each in found.holdings for id_ in each.ids} == expected
    assert found.ids == expected.keys()
    assert found.only_recorded == {id_ for id_, label in expected.items() if label == ONLY_RECORDED}
    for id_ in IDS:
        assert found.holders(frozenset({id_, "another"})) == {expected[id_] for id_ in expected.keys() & {id_}}


@given(records())
def test_containers_in_pod_resources_have_their_units_and_uids(both: tuple[list[Holding], list[Holding]]) -> None:
    """Units that only the checkpoint has of these pods are theirs, too, such as those of init containers."""
    shown, recorded = both
    holdings = combined(shown, recorded)
    named = [each._replace(uid=uid(each, recorded)) for each in shown if each.ids]
    assert [each for each in holdings if not each.only_recorded] == named
    active = {each.uid for each in named}
    theirs = {(each.resource, id_) for each in recorded if each.uid in active for id_ in each.ids}
    assert held_by_shown(holdings) == theirs | {(each.resource, id_) for each in named for id_ in each.ids}
