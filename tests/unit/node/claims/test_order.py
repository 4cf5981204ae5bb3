"""Tests of `gpushare_plugin.node.claims.order`: how often the order of the devices may change."""

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.device import Device, DeviceTaint
from gpushare_plugin.node.claims.order import BETWEEN_ORDERS, OrderPauses

FIRST, SECOND = (Device(name, name.upper(), True, {}, {}) for name in ("gpu-a", "gpu-b"))  # noqa: FBT003
TAINTED = replace(FIRST, taints=(DeviceTaint("gpushare/fault", "", "NoSchedule"),))
ONE, OTHER = (FIRST, SECOND), (SECOND, FIRST)


def test_another_order_comes_at_once_and_the_next_after_a_pause() -> None:
    """However often claims come and go, there is one write in a second; the last order is not lost."""
    pauses = OrderPauses()
    assert pauses.wait(ONE, OTHER, 10.0) == 0.0
    assert pauses.wait(OTHER, ONE, 10.25) == BETWEEN_ORDERS - 0.25
    assert pauses.wait(OTHER, ONE, 10.0 + BETWEEN_ORDERS) == 0.0
    assert pauses.wait(ONE, OTHER, 10.5 + BETWEEN_ORDERS) > 0.0


def test_whatever_is_more_than_another_order_comes_at_once() -> None:
    """A fault must not wait, and neither must a GPU that comes or goes."""
    pauses = OrderPauses()
    assert pauses.wait(ONE, OTHER, 10.0) == 0.0
    for before, wanted in (
        (OTHER, (SECOND, TAINTED)),
        ((SECOND, TAINTED), ONE),
        (ONE, (SECOND,)),
        ((SECOND,), OTHER),
        (OTHER, None),
        (None, ONE),
    ):
        assert pauses.wait(before, wanted, 10.1) == 0.0
