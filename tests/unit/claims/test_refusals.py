"""Tests of `gpushare_plugin.claims.refusals`."""

from typing import get_args

from gpushare_plugin.claims.claim import RefusalReason
from gpushare_plugin.claims.refusals import REFUSALS


def test_every_reason_is_explained() -> None:
    """The document has a row for each reason that metrics count."""
    assert list(REFUSALS) == list(get_args(RefusalReason))
