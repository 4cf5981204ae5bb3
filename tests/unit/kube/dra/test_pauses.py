"""Tests of `gpushare_plugin.kube.dra.pauses`: two that write against each other write seldom in the end."""

from gpushare_plugin.kube.dra.pauses import BETWEEN_WRITES, LONGEST_BETWEEN_MENDS, QUIET, WritePauses


def test_pauses_grow_while_others_write_again_and_again() -> None:
    """They double up to the longest; a minute without that begins anew. Own changes are not held up."""
    pauses = WritePauses()
    waits = [pauses.after(mended=True, now=float(number)) for number in range(9)]
    assert waits[:3] == [BETWEEN_WRITES, 2 * BETWEEN_WRITES, 4 * BETWEEN_WRITES]
    assert waits[-1] == LONGEST_BETWEEN_MENDS
    assert pauses.after(mended=False, now=9.0) == BETWEEN_WRITES
    assert pauses.after(mended=True, now=10.0) == LONGEST_BETWEEN_MENDS
    assert pauses.after(mended=True, now=10.0 + QUIET) == BETWEEN_WRITES
