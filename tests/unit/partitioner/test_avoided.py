"""Tests of `gpushare_plugin.partitioner.rounds.AvoidedNodes`."""

from gpushare_plugin.partitioner.rounds import AVOIDED, MOST_AVOIDED, AvoidedNodes
from tests.clock import Clock


def test_a_rejected_node_is_avoided_for_a_time_after_its_last_rejection() -> None:
    """Only the first rejection in that time makes a node newly avoided."""
    clock = Clock(0.0)
    avoided = AvoidedNodes(clock)
    assert avoided.add({"n0"}) == {"n0"}
    clock.now = AVOIDED - 1
    assert avoided.names == {"n0"}
    assert avoided.add({"n0", "n1"}) == {"n1"}
    clock.now = AVOIDED + 1
    assert avoided.names == {"n0", "n1"}
    clock.now = 2 * AVOIDED
    assert avoided.names == set()
    assert avoided.add({"n0"}) == {"n0"}


def test_a_forgotten_node_is_not_avoided() -> None:
    """A node whose annotation could be written counts like every other node at once, other nodes stay avoided."""
    avoided = AvoidedNodes(Clock(0.0))
    avoided.add({"n0", "n1"})
    avoided.forget("n0")
    avoided.forget("unknown")
    assert avoided.names == {"n1"}


def test_avoided_nodes_have_a_bound() -> None:
    """When every node is rejected, the first nodes by name are avoided, and known ones are avoided for longer."""
    clock = Clock(0.0)
    avoided = AvoidedNodes(clock)
    many = {f"n{number:04}" for number in range(MOST_AVOIDED + 5)}
    first = set(sorted(many)[:MOST_AVOIDED])
    assert avoided.add(many) == first
    clock.now = AVOIDED / 2
    assert avoided.add(many) == set()
    clock.now = AVOIDED
    assert avoided.names == first
