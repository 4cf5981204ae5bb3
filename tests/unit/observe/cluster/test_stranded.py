"""Tests of `gpushare_plugin.observe.cluster.stranded` and `stranded_words`: what is said about pods to move."""

import pytest

from gpushare_plugin.ledger.stranded import MOST_CARDS
from gpushare_plugin.observe.cluster.stranded import Freed, StrandedReport, stranded_cards, stranded_room
from gpushare_plugin.observe.cluster.stranded_words import MOST_SHOWN, lines
from tests.unit.ledger.objects import account, container, memory, memory_node, pod, request, uuid


def test_a_card_in_words() -> None:
    """The card, who is to be moved and who makes the pod again, where it fits, and what to do."""
    pods = (pod(memory(2), "node", "a", on=uuid(0)), pod(memory(5), "node", "b", on=uuid(1)))
    report = stranded_cards(account(memory_node(8, 8), pods=pods), {"a": "Job"})
    assert list(lines(report))[:6] == [
        "Cards that would be free: 1; each counts on the moves before it",
        "",
        "GPU0 of node node: move 1 pod",
        "  default/a (Job; 2 aliyun.com/gpu-mem) fits on node: GPU1",
        "",
        "To move pods off a card, keep new pods away: kubectl annotate node NODE gpushare/unhealthy-gpus=INDEX",
    ]


@pytest.mark.parametrize(
    ("asked", "needless"),
    [
        (pod(memory(5)), "it fits on GPUs of node node as they are"),
        (pod(memory(5), ended=True), "it has ended"),
        (pod(memory(5), "node"), "it is on node node"),
        (pod(request()), "it asks for nothing that gpushare serves"),
    ],
    ids=["fits", "ended", "bound", "not ours"],
)
def test_a_pod_that_needs_no_room_is_told_so(asked: object, needless: str) -> None:
    """Nothing is searched for the pod."""
    assert isinstance(asked, type(pod(memory(5))))
    report = stranded_room(account(memory_node(8)), {}, asked)
    assert list(lines(report)) == [f"Pod default/pod needs no other room: {needless}"]


def test_a_pod_for_which_no_few_moves_make_room_is_told_so() -> None:
    """The pods in the way have no other place."""
    held = pod(memory(5), "node", "held", on=uuid(0))
    report = stranded_room(account(memory_node(8), pods=(held,)), {}, pod(memory(8)))
    assert (report.candidates, report.freed) == (1, ())
    assert next(lines(report)) == "Few moves make no room for pod default/pod"


def test_nothing_is_freed_for_a_slice_where_no_node_makes_slices() -> None:
    """No pod is in the way of a slice that no node offers."""
    report = stranded_room(account(memory_node(8)), {}, pod(request(container("main", slice=1))))
    assert (report.candidates, report.freed, report.needless) == (0, (), None)


def test_a_long_list_is_cut_and_says_what_was_looked_at() -> None:
    """JSON has all of the list; no more cards are examined in a large cluster."""
    freed = tuple(Freed(node=f"n{number}", index=0) for number in range(MOST_SHOWN + 1))
    shown = list(lines(StrandedReport(candidates=40_000, freed=freed)))
    assert shown[0].startswith(f"Cards that would be free: 21 (of 40,000 with few pods, {MOST_CARDS} looked at); each")
    assert "… and 1 more; -o json shows all" in shown
