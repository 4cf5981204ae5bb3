"""Tests of `gpushare_plugin.mig.link`."""

from pathlib import Path

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.gpus.exchange import read_message, write_message
from gpushare_plugin.mig.exchange import MigOrder, MigRoot, MigStatus, WantedCard
from gpushare_plugin.mig.link import MigLink

CARD = "GPU-00000000-0000-4000-8000-000000000000"
ONE = "MIG-00000000-0000-4000-8000-000000000001"


@pytest.fixture
def root(tmp_path: Path) -> MigRoot:
    """Return a root where an earlier daemon let an instance go in its third order."""
    made = MigRoot(tmp_path)
    write_message(made.wanted, MigOrder(revision=3, gpus=(WantedCard(uuid=CARD, removable=(ONE,)),)))
    return made


def test_an_instance_that_may_go_is_unsafe_until_another_order_is_read(root: MigRoot) -> None:
    """Neither a new order nor the status of an older one is enough."""
    link = MigLink(root)
    with lock(root.lock):
        write_message(root.status, MigStatus(revision=3))
        link.confirm(link.look())
        assert link.may_be_destroyed(ONE)
        link.order([WantedCard(uuid=CARD, instances=("7g.40gb@0",))])
        written = read_message(root.wanted, MigOrder)
        assert written is not None
        assert written.revision == 4
        link.confirm(link.look())
        assert link.may_be_destroyed(ONE)
        write_message(root.status, MigStatus(revision=4))
        link.confirm(link.look())
        assert not link.may_be_destroyed(ONE)


def test_the_newest_order_counts_at_once_without_gpushare_mig(root: MigRoot) -> None:
    """A `gpushare mig` that starts later reads that order; and the view says what is missing."""
    link = MigLink(root)
    link.order(())
    view = link.look()
    assert "gpushare mig does not run" in (view.trouble or "")
    link.confirm(view)
    assert not link.may_be_destroyed(ONE)
    assert not link.in_use


def test_every_instance_is_unsafe_after_an_order_that_cannot_be_read(root: MigRoot) -> None:
    """Until an order of our own counts."""
    root.wanted.write_text("{")
    link = MigLink(root)
    link.confirm(link.look())
    assert link.may_be_destroyed(ONE)
    link.order(())
    link.confirm(link.look())
    assert not link.may_be_destroyed(ONE)


def test_an_order_that_cannot_be_written_is_written_later(root: MigRoot) -> None:
    """Meanwhile the one before counts."""
    link = MigLink(root)
    root.wanted.unlink()
    root.wanted.mkdir()
    link.order(())
    view = link.look()
    assert "cannot be written" in (view.trouble or "")
    link.confirm(view)
    assert link.may_be_destroyed(ONE)
    root.wanted.rmdir()
    link.order(())
    link.confirm(link.look())
    assert not link.may_be_destroyed(ONE)
