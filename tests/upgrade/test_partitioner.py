"""Daemons of one build, and a partitioner, `gpushare mps` and `gpushare mig` of the other one."""

from pathlib import Path

import pytest

from tests.upgrade.builds import Build
from tests.upgrade.lives import SEED, STEPS
from tests.upgrade.partitioned import dividing
from tests.upgrade.shown import check_kept_shown, check_slices_shown


@pytest.mark.long
@pytest.mark.parametrize("daemons", ["old", "new"])
async def test_slices_are_made_that_a_partitioner_of_another_build_wants(
    short_path: Path, old: Build, new: Build, daemons: str
) -> None:
    """Random pods come and go: those with room run, held slices stay, and no GPU has more than it can have.

    Orders and reports pass between the daemon and the program beside it that is of the other build, too, and commands
    of both builds show what there is.
    """
    daemon, others = (old, new) if daemons == "old" else (new, old)
    async with dividing(short_path, daemon, others, others, seed=SEED) as life:
        await life.steps(STEPS // 2)
        await life.recut()
        await check_slices_shown(life, daemon, others)
        await check_kept_shown(life, daemon, others)
