"""Tests of `gpushare_plugin.driver_limits.exchange`: what is taken from the file of another process."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.driver_limits.exchange import DriverLimitsStatus, LimitOrder, WantedLimit
from gpushare_plugin.gpus.exchange import ExchangeError, read_message, write_message
from tests.unit.driver_limits.conftest import GPU, OTHER, container_id, pod_uid, wanted

ONE = f'{{"pod_uid": "{pod_uid(1)}", "container_id": "{container_id(1)}", "gpus": []}}'


def test_an_order_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Limits are in MiB in the file and in bytes in the program; none is none."""
    order = LimitOrder(gpus=(GPU, OTHER), containers=(wanted(1, 2048, 1024), wanted(2)))
    write_message(tmp_path / "file", order)
    assert read_message(tmp_path / "file", LimitOrder) == order
    assert order.containers[0].gpus[0].limit == MemoryLimit(2048 * MIB, 1024 * MIB)
    assert order.containers[1].gpus[0].limit == NO_LIMIT


def test_thousands_of_containers_fit(tmp_path: Path) -> None:
    """The size limit is above what a node can have."""
    order = LimitOrder(containers=tuple(wanted(number, 1, 0, GPU, OTHER) for number in range(5000)))
    write_message(tmp_path / "file", order)
    assert read_message(tmp_path / "file", LimitOrder) == order


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f'{{"containers": [{ONE}, {ONE}]}}', "the same container is listed more than once"),
        ('{"gpus": ["MIG-1"]}', "gpus.0"),
        (ONE.replace(container_id(1), f"../{container_id(1)[3:]}").join(('{"containers": [', "]}")), "container_id"),
        (ONE.replace(container_id(1), f"{container_id(1)}\\n").join(('{"containers": [', "]}")), "container_id"),
        (ONE.replace(pod_uid(1), "..").join(('{"containers": [', "]}")), "pod_uid"),
        (ONE.replace("[]", f'[{{"uuid": "{GPU}"}}, {{"uuid": "{GPU}"}}]').join(('{"containers": [', "]}")), "same GPU"),
        (
            ONE.replace("[]", f'[{{"uuid": "{GPU}", "hard_mib": 1, "soft_mib": 2}}]').join(('{"containers": [', "]}")),
            "the soft limit is above the hard limit",
        ),
        (ONE.replace("[]", f'[{{"uuid": "{GPU}", "hard_mib": -1}}]').join(('{"containers": [', "]}")), "hard_mib"),
        (ONE.replace("[]", f'[{{"uuid": "{GPU}", "hard_mib": 1.5}}]').join(('{"containers": [', "]}")), "hard_mib"),
        (" " * (1 << 23) + "{}", "which gpushare never writes"),
    ],
)
def test_an_order_that_gpushare_never_writes_is_refused(tmp_path: Path, content: str, words: str) -> None:
    """Above all no ID that could lead out of the cgroups of pods."""
    (tmp_path / "file").write_text(content)
    with pytest.raises(ExchangeError, match=words):
        read_message(tmp_path / "file", LimitOrder)


@given(st.text())
def test_any_uuid_but_that_of_a_card_is_refused(text: str) -> None:
    """A MIG instance has no driver limits."""
    with pytest.raises(ValueError, match="uuid"):
        WantedLimit(uuid=text)


def test_keys_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    """Both daemons may have different versions for a while."""
    (tmp_path / "file").write_text('{"version": 1, "later": 1, "gpus": [], "containers": []}')
    assert read_message(tmp_path / "file", DriverLimitsStatus) == DriverLimitsStatus()
