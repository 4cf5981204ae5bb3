"""Tests of `core.driver_limits`."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import LimitRule, MemoryLimit, has_driver_limits

GPU_MIB = 40960


@pytest.mark.parametrize(
    ("rule", "share_mib", "expected"),
    [
        (LimitRule(), 1024, MemoryLimit(1024 * MIB)),
        (LimitRule(added_mib=512), 1024, MemoryLimit(1536 * MIB)),
        (LimitRule(added_mib=512), GPU_MIB, MemoryLimit(GPU_MIB * MIB)),
        (LimitRule(burst=Fraction(3, 2)), 1024, MemoryLimit(1536 * MIB, 1024 * MIB)),
        (LimitRule(burst_mib=8192), 1024, MemoryLimit(8192 * MIB, 1024 * MIB)),
        (LimitRule(burst_mib=8192), 10240, MemoryLimit(10240 * MIB, 10240 * MIB)),
        (LimitRule(burst=Fraction(4)), 20480, MemoryLimit(GPU_MIB * MIB, 20480 * MIB)),
        (LimitRule(512, Fraction(2)), 1024, MemoryLimit(3072 * MIB, 1024 * MIB)),
    ],
)
def test_limits_follow_the_share(rule: LimitRule, share_mib: int, expected: MemoryLimit) -> None:
    """The soft limit is 0 without a burst, and the share with a burst; the hard limit is never above the GPU."""
    assert rule.limit(share_mib, GPU_MIB) == expected


@given(
    added=st.integers(0, 2048),
    burst=st.none() | st.fractions(1, 8),
    size=st.none() | st.integers(1, 2 * GPU_MIB),
    share=st.integers(1, GPU_MIB),
)
def test_the_driver_accepts_every_limit(added: int, burst: Fraction | None, size: int | None, share: int) -> None:
    """A soft limit above the hard limit, a hard limit above the GPU, and a limit below the share never appear."""
    limit = LimitRule(added, burst, size).limit(share, GPU_MIB)
    assert limit.hard is not None
    assert max(limit.soft, share * MIB) <= limit.hard <= GPU_MIB * MIB


@given(
    added=st.integers(0, 2048),
    burst=st.fractions(1, 8),
    shares=st.lists(st.integers(1, GPU_MIB // 4), min_size=1, max_size=4),
)
def test_what_a_gpu_guarantees_is_never_more_than_it_has(added: int, burst: Fraction, shares: list[int]) -> None:
    """Containers can borrow the same memory, so hard limits can add up to more; the soft limits are the shares."""
    limits = [LimitRule(added, burst).limit(share, GPU_MIB) for share in shares]
    assert sum(each.soft for each in limits) == sum(shares) * MIB <= GPU_MIB * MIB


@pytest.mark.parametrize(
    ("version", "expected"),
    [("615.71.09", True), ("1000.1", True), ("610.30", False), ("", False), ("615x.1", False), ("9" * 5000, False)],
)
def test_drivers_from_615_on_have_limits(version: str, *, expected: bool) -> None:
    """A text that is no version of a driver counts as a driver without limits."""
    assert has_driver_limits(version) == expected
