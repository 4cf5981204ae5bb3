"""Random tests of `gpushare_plugin.partition.decide`: what holds whatever happens, in a cluster simulated here.

GPUSHARE_PARTITION_STEPS is the number of steps of each cluster, GPUSHARE_PARTITION_SEEDS how many clusters there are.
"""

import os

import pytest

from tests.unit.partition.simulation import Cluster

STEPS = int(os.environ.get("GPUSHARE_PARTITION_STEPS", "500"))
SEEDS = int(os.environ.get("GPUSHARE_PARTITION_SEEDS", "2"))
EVERY = 500
"""Steps after which things settle once."""


@pytest.mark.parametrize("kind", ["mps", "mig"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_slices_in_use_stay_and_pods_run_once_things_settle(seed: int, kind: str) -> None:
    """No GPU is given more than it has, whatever happens, and in the end whatever fits runs."""
    cluster = Cluster(seed, kind)
    for done in range(0, STEPS, EVERY):
        for _ in range(min(EVERY, STEPS - done)):
            cluster.step()
        cluster.settle()
        assert not list(cluster.could_run())
    print(dict(sorted(cluster.happened.items())))  # noqa: T201 - shown with -s, or where it fails
