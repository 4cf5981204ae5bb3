"""Daemons of one build, and an extender of the other one."""

import os
from pathlib import Path

import pytest

from tests.upgrade.builds import Build
from tests.upgrade.memory import living

STEPS = int(os.environ.get("GPUSHARE_UPGRADE_STEPS", "12"))
"""Steps of each life, the same in each run; set the variable for longer ones, and GPUSHARE_UPGRADE_SEED for others."""

SEED = int(os.environ.get("GPUSHARE_UPGRADE_SEED", "1"))


@pytest.mark.parametrize("daemons", ["old", "new"])
async def test_pods_get_what_an_extender_of_another_build_promised(
    short_path: Path, old: Build, new: Build, daemons: str
) -> None:
    """Random pods come and go: each that fits runs, on the GPUs that it was promised, and everybody counts alike."""
    builds = (old, new) if daemons == "old" else (new, old)
    async with living(short_path, *builds, SEED) as life:
        await life.steps(STEPS)
