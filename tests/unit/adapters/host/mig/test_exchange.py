"""Tests of `gpushare_plugin.adapters.host.mig.exchange`."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.adapters.host.exchange import ExchangeError, read_message, write_message
from gpushare_plugin.adapters.host.mig.exchange import MigOrder, MigRoot, WantedCard
from gpushare_plugin.model.partition.slices import MigPlace

CARD = "GPU-00000000-0000-4000-8000-000000000001"
INSTANCE = "MIG-00000000-0000-5000-8000-000000000001"


@given(
    st.sets(st.tuples(st.sampled_from(["1g.5gb", "1g.5gb+me", "3g.20gb"]), st.integers(0, 7)), max_size=7),
    st.none() | st.booleans(),
    st.integers(0, 1 << 40),
)
def test_what_is_written_is_read(places: set[tuple[str, int]], mode: bool | None, revision: int) -> None:  # noqa: FBT001
    """Any order comes back as it went, and names its places."""
    wanted = tuple(MigPlace(*place) for place in sorted(places))
    card = WantedCard(uuid=CARD, instances=tuple(map(str, wanted)), removable=(INSTANCE,), mig_mode=mode)
    order = MigOrder(revision=revision, gpus=(card,))
    assert MigOrder.model_validate_json(order.model_dump_json()) == order
    assert order.gpus[0].places == wanted


def test_keys_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    """Either daemon may be upgraded first, so what is not known does not matter."""
    root = MigRoot(tmp_path)
    root.wanted.write_text(f'{{"version": 1, "revision": 3, "gpus": [{{"uuid": "{CARD}", "colour": 1}}], "shape": 4}}')
    assert read_message(root.wanted, MigOrder) == MigOrder(revision=3, gpus=(WantedCard(uuid=CARD),))
    write_message(root.wanted, MigOrder(revision=4))
    assert read_message(root.wanted, MigOrder) == MigOrder(revision=4)


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (
            f'{{"uuid": "{CARD}", "instances": ["3g.20gb"]}}',
            "'3g.20gb' found, a MIG profile and its first memory slice",
        ),
        (f'{{"uuid": "{CARD}", "instances": ["1g.5gb@0", "1g.5gb@0"]}}', "same place is listed more than once"),
        (f'{{"uuid": "{CARD}", "removable": ["GPU-1"]}}', "gpus.0.removable.0"),
        (f'{{"uuid": "{CARD}"}}, {{"uuid": "{CARD}"}}', "same GPU is listed more than once"),
        ('{"uuid": "MIG-1"}', "gpus.0.uuid"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, gpu: str, words: str) -> None:
    """The error says where the mistake is, what was found and what to check."""
    root = MigRoot(tmp_path)
    root.wanted.write_text(f'{{"version": 1, "gpus": [{gpu}]}}')
    with pytest.raises(ExchangeError) as caught:
        read_message(root.wanted, MigOrder)
    assert words in str(caught.value)
    assert "the same version" in str(caught.value)
