"""Daemons of one build, and an extender of the other one."""

from pathlib import Path

import pytest

from tests.upgrade.builds import Build
from tests.upgrade.lives import SEED, STEPS
from tests.upgrade.memory import living
from tests.upgrade.shown import check_shown


@pytest.mark.long
@pytest.mark.parametrize("daemons", ["old", "new"])
async def test_pods_get_what_an_extender_of_another_build_promised(
    short_path: Path, old: Build, new: Build, daemons: str
) -> None:
    """Random pods come and go: each that fits runs, on the GPUs that it was promised, and everybody counts alike.

    Commands of the extender's build show the same of the nodes, and of the daemons at their sockets.
    """
    builds = (old, new) if daemons == "old" else (new, old)
    async with living(short_path, *builds, seed=SEED) as life:
        await life.steps(STEPS)
        await life.settle()
        await check_shown(life, builds[1])
