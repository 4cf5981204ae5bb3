"""The use of a node, read back from a page of metrics that may say anything."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.effect import IN_EFFECT
from gpushare_plugin.observe.metrics.scraped import LONGEST_LINE, MOST_LINES, UnreadableMetricsError, usage_of
from tests.unit.ledger.objects import uuid
from tests.unit.web.measured import GIB, container_lines, gpu_lines, page

LABELS = '{index="0",uuid="x"}'


def test_what_a_page_says_of_use_is_found() -> None:
    """GPUs and containers with all figures, whatever else is on the page; what the page lacks is unknown."""
    lines = [
        *gpu_lines("a", 0, 4 * GIB),
        *container_lines("a", 0, "train", memory_used_bytes=GIB, utilization_ratio=0.25, limit_in_effect=1),
        *container_lines("a", 0, "idle", limit_in_effect=0),
        "gpushare_usage_age_seconds 3.5",
    ]
    usage = usage_of(page(*lines))
    (gpu,) = usage.gpus
    assert (gpu.uuid, gpu.memory_total, gpu.memory_used, gpu.utilization) == (uuid(0, "a"), 16 * GIB, 4 * GIB, 0.5)
    train, idle = usage.containers
    assert (train.label, train.container, train.gpu, train.units) == ("default/train", "main", uuid(0, "a"), 1)
    assert (train.used, train.utilization, train.effect, usage.age) == (GIB, 0.25, IN_EFFECT, 3.5)
    assert (idle.used, idle.utilization) == (None, None)
    assert idle.effect is not None
    assert (idle.effect.state, "limit_not_in_effect" in idle.effect.words) == ("not in effect", True)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "1" + "0" * 400])
def test_a_figure_that_can_be_none_is_unknown(value: str) -> None:
    """A negative, an endless or an absurd amount counts as no figure; all others of the page count."""
    found = usage_of(page(f"gpushare_gpu_memory_used_bytes{LABELS} {value}", f"gpushare_gpu_memory_bytes{LABELS} 5"))
    assert [(each.memory_total, each.memory_used) for each in found.gpus] == [(5, None)]


@pytest.mark.parametrize(
    "text",
    [
        b"gpushare_gpu_memory_bytes{\xff} 1",
        b"gpushare_gpu_memory_bytes{uuid=",
        b"gpushare_gpu_memory_bytes one",
        b'gpushare_gpu_memory_bytes{uuid="' + b"x" * LONGEST_LINE + b'"} 1',
        b"gpushare_usage_age_seconds 1\n" * (MOST_LINES + 1),
    ],
)
def test_a_page_beyond_the_bounds_is_refused(text: bytes) -> None:
    """What is no text, no figure, or too long is told as an error."""
    with pytest.raises(UnreadableMetricsError):
        usage_of(text)


@given(st.text(alphabet='gpushare_{}="\\,# \n0', max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No other error comes of a page."""
    with suppress(UnreadableMetricsError):
        usage_of(f"gpushare_gpu_memory_bytes{text}".encode())
