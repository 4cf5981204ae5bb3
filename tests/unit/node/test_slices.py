"""Tests of `gpushare_plugin.node.gpus.slices`: which request counts. `tests/node/test_partition.py` has whole nodes."""

from pathlib import Path

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.mig.exchange import MigRoot
from gpushare_plugin.node.gpus.looks import Looks
from gpushare_plugin.node.gpus.mig_needs import NodeMig
from gpushare_plugin.node.gpus.slices import NodeSlices
from gpushare_plugin.node.gpus.state import Gpus
from gpushare_plugin.node.gpus.withdrawals import NodeWithdrawals
from gpushare_plugin.node.news.news import News, NewsItem, Warned
from gpushare_plugin.sharing.cut import PresentUnits
from gpushare_plugin.slices.slice import Slice, SliceKind
from gpushare_plugin.slices.wanted import SliceRequest
from tests.nodes import Cards, a_gpu, a_mig_node
from tests.unit.sharing.settings import present

CARD, WITHOUT_PLACES = Inventory((a_gpu(0),)), a_mig_node(("1g.5gb", "3g.20gb"))
DIVIDED = replace(
    WITHOUT_PLACES,
    instances=tuple(
        replace(gpu, mig=replace(gpu.mig, start=start))
        for gpu, start in zip(WITHOUT_PLACES.instances, (0, 4), strict=True)
        if gpu.mig
    ),
)
INSTANCES = {gpu.uuid: dict[Slice, tuple[int, ...]]() for gpu in DIVIDED.instances}


class Cutting:
    """The slices of a node, and the warnings about them."""

    def __init__(self, folder: Path) -> None:
        """Cut nothing yet."""
        news = News(self._take)
        looks = Looks(Cards(DIVIDED), Gpus(DIVIDED, Config().health, news), lambda: None)
        withdrawals = NodeWithdrawals(lambda: 0.0, frozenset)
        self.slices = NodeSlices(NodeMig(MigRoot(folder), looks, lambda: 0.0), withdrawals, news)
        self.warnings: list[str] = []

    def _take(self, item: NewsItem) -> None:
        assert isinstance(item, Warned)
        self.warnings.append(item.notice)

    def cut(self, kind: SliceKind) -> object:
        """Return how the GPUs are cut: a card with the slice 10gb-1, or one with two MIG instances."""
        node = CARD if kind == "mps" else DIVIDED
        units = present(CARD, ["00000000-10gb-1"]) if kind == "mps" else PresentUnits(asked_at=0.0)
        return self.slices.cut(kind, node, units, {}, manage=False)


@pytest.fixture
def cutting(tmp_path: Path) -> Cutting:
    """Return slices without a request."""
    return Cutting(tmp_path)


def test_an_unreadable_request_keeps_what_was_wanted(cutting: Cutting) -> None:
    """It is told, once."""
    cutting.slices.follow(SliceRequest({a_gpu(0).uuid: {"20gb": 1}}))
    assert cutting.cut("mps") == {a_gpu(0).uuid: {Slice("mps", "20gb"): (0,)}}
    unreadable = SliceRequest(None, ("no JSON",))
    assert cutting.slices.is_new(unreadable)
    cutting.slices.follow(unreadable)
    assert not cutting.slices.is_new(unreadable)
    assert cutting.cut("mps") == cutting.cut("mps") == {a_gpu(0).uuid: {Slice("mps", "20gb"): (0,)}}
    assert cutting.warnings == ["no JSON"]


@pytest.mark.parametrize(
    ("kind", "before", "as_it_is"),
    [("mps", "mig", {a_gpu(0).uuid: {Slice("mps", "10gb"): (1,)}}), ("mig", "mps", INSTANCES)],
)
def test_a_request_of_the_other_kind_changes_no_gpu(
    kind: SliceKind, before: SliceKind, as_it_is: object, cutting: Cutting
) -> None:
    """After a change of the label, the daemon has the request of the other kind until the next one, readable or not."""
    nothing = {a_gpu(0).uuid: dict[str, int]()}
    cutting.slices.follow(SliceRequest(nothing, ("of the other kind",), before))
    assert cutting.cut(kind) == as_it_is
    cutting.slices.follow(SliceRequest(None, ("no JSON",), kind))
    assert cutting.cut(kind) == as_it_is
    cutting.slices.follow(SliceRequest(nothing, kind=kind))
    assert not cutting.slices.is_new(SliceRequest(nothing, kind=kind))
    assert cutting.cut(kind) == ({a_gpu(0).uuid: {}} if kind == "mps" else {})
    told = [each for each in cutting.warnings if "gpushare mig does not run" not in each]
    assert (told, cutting.slices.notices(None)) == (["no JSON"], ())


def test_slices_wanted_before_the_label_was_away_are_wanted_after(cutting: Cutting) -> None:
    """A node without the label follows requests for MPS; those change nothing of what was wanted of MIG instances."""
    assert cutting.cut("mig") == INSTANCES
    cutting.slices.follow(SliceRequest({a_gpu(0).uuid: {}}, kind="mig"))
    assert cutting.cut("mig") == {}
    cutting.slices.follow(SliceRequest({}, kind="mps"))
    assert cutting.cut("mig") == {}
    cutting.slices.follow(SliceRequest(None, ("no JSON",), "mig"))
    assert cutting.cut("mig") == {}
