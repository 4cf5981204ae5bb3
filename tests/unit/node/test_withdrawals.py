"""Tests of `gpushare_plugin.node.gpus.withdrawals`."""

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.node.gpus.withdrawals import LOOK_AGAIN, NodeWithdrawals
from gpushare_plugin.sharing.withdrawal import WITHDRAWN_SECONDS
from gpushare_plugin.slices.slice import SchedulableSlices
from tests.nodes import a_gpu
from tests.unit.kubelet.serving import shared_memory

NAME = "nvidia.com/gpu-10gb"
SLICES: Resource = shared_memory(2, 1, name=NAME)
FIRST, SECOND, THIRD = SLICES.units


class Node:
    """Withdrawals of a node whose time is in the hands of a test, and whose Node shows what it is to show."""

    def __init__(self) -> None:
        """Show three slices."""
        self.now = 100.0
        self.withdrawals = NodeWithdrawals(lambda: self.now, frozenset)
        self.show()

    def show(self) -> SchedulableSlices:
        """Have the Node show what it is to show, and return that."""
        self.withdrawals.publish("mps", {NAME: SLICES, "nvidia.com/gpu": SLICES})
        slices = self.withdrawals.schedulable.value
        assert slices is not None
        self.withdrawals.shown(slices)
        return slices

    def withdraw(self, *ids: str) -> frozenset[str]:
        """Have these not wanted."""
        return self.withdrawals.keep(dict.fromkeys(ids, NAME), self.now)


def test_slices_are_not_withdrawn_if_the_node_cannot_be_written() -> None:
    """Slices are retired at once then; those that are withdrawn already are hidden soon, or end."""
    node = Node()
    assert node.withdraw(FIRST) == {FIRST}
    node.withdrawals.failed()
    assert node.withdraw(FIRST, SECOND) == {FIRST}


def test_slices_that_can_be_allocated_and_are_not_withdrawn_are_shown() -> None:
    """Slices of its kind only, without those of a GPU that is unhealthy."""
    node = Node()
    node.withdraw(FIRST)
    assert node.show() == SchedulableSlices("mps", {NAME: frozenset({SECOND, THIRD})}, frozenset({FIRST}))
    unhealthy = replace(SLICES, unhealthy={a_gpu(1).uuid: "failed"})
    node.withdrawals.publish("mps", {NAME: unhealthy})
    assert node.withdrawals.schedulable.value == SchedulableSlices(
        "mps", {NAME: frozenset({SECOND})}, frozenset({FIRST})
    )
    node.withdrawals.publish("mig", {NAME: SLICES})
    assert node.withdrawals.schedulable.value == SchedulableSlices("mig", {}, frozenset({FIRST}))


def test_a_node_that_is_no_longer_partitioned_shows_what_its_kubelet_counts() -> None:
    """No slice is withdrawn there."""
    node = Node()
    node.withdraw(FIRST)
    node.withdrawals.publish(None, {NAME: SLICES})
    assert node.withdrawals.schedulable.value is None
    assert node.withdrawals.ids == frozenset()


def test_a_second_slice_that_is_withdrawn_does_not_delay_the_first() -> None:
    """The Node shows one too many, which is the second; one more means that both are visible again."""
    node = Node()
    node.withdraw(FIRST)
    node.show()
    assert node.withdrawals.hidden == {FIRST}
    node.now += 0.9
    node.withdraw(FIRST, SECOND)
    node.withdrawals.exceeded({NAME: 1})
    assert node.withdrawals.hidden == {FIRST}
    node.withdrawals.exceeded({NAME: 2, "nvidia.com/gpu-5gb": 7})
    assert node.withdrawals.hidden == frozenset()


def test_the_kubelet_is_asked_when_something_can_end() -> None:
    """A while later again where something holds it back."""
    node = Node()
    assert node.withdrawals.pause(2.0) == 2.0
    node.withdraw(FIRST)
    node.show()
    node.now += 0.25
    assert node.withdrawals.pause(2.0) == WITHDRAWN_SECONDS - 0.25
    node.now += 1.0
    assert node.withdrawals.pause(2.0) == LOOK_AGAIN
