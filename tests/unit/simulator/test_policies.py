"""Tests of the policies that are compared."""

from random import Random

import numpy as np
import pytest

from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind, NodeRows
from gpushare_plugin.simulator.policies.table import COMPARED, Setting
from gpushare_plugin.simulator.policies.unusable import Unusable
from tests.unit.packing.clusters import a_node, a_pod, lives


def unusable(rows: NodeRows, row: int, pods: list[PodKind]) -> float:
    """Return the unusable GPUs of a node for all pods on average, as the paper defines it."""
    free = rows.free[row].tolist()
    every, found = sum(free) / 100, 0.0
    for pod in pods:
        fits = (
            pod.gpus > 0
            and pod.cpu <= rows.free_cpu[row]
            and (not pod.models or rows.models[rows.model[row]] in pod.models)
            and sum(part >= pod.percent for part in free) >= pod.gpus
        )
        found += sum(part for part in free if part < pod.percent) / 100 if fits else every
    return found / len(pods)


@pytest.mark.parametrize("seed", range(3))
def test_unusable_is_what_the_paper_defines(seed: int) -> None:
    """The table has for every node what the definition gives, pod by pod."""
    chance = Random(seed)  # noqa: S311 - no secret
    rows = NodeRows([a_node(chance) for _ in range(12)])
    pods = [a_pod(chance) for _ in range(10)]  # each of another kind, mostly: all of them are typical
    measure = Unusable(rows, pods)
    for _ in lives(rows, 200, chance):
        expected = [unusable(rows, row, pods) for row in range(12)]
        assert measure.of(slice(None)).tolist() == pytest.approx(expected, abs=1e-9)
    expected = [unusable(rows, row, pods) for row in range(12)]
    assert measure.part() == pytest.approx(sum(expected) / (rows.free.sum() / 100))


@pytest.mark.parametrize("seed", range(2))
def test_fgd_chooses_where_the_unusable_part_grows_least(seed: int) -> None:
    """No other node and no other GPU has a better score: each is tried."""
    chance = Random(seed)  # noqa: S311 - no secret
    rows = NodeRows([a_node(chance) for _ in range(8)])
    pods = [a_pod(chance) for _ in range(10)]
    policy = COMPARED["fgd"](Setting(rows, pods, np.random.default_rng(0)))
    for _ in lives(rows, 150, chance):
        kind = a_pod(chance)
        scores: dict[tuple[int, tuple[int, ...]], int] = {}
        for row in rows.fitting(kind).tolist():
            before = unusable(rows, row, pods)
            gpus = [gpu for gpu, free in enumerate(rows.free[row].tolist()) if free >= kind.percent] or [0]
            for spot in {rows.spot(row, kind, gpu) for gpu in gpus}:
                rows.take(kind, spot)
                grown = unusable(rows, row, pods) - before
                rows.give_back(kind, spot)
                scores[spot] = int(np.floor(100 / (1 + np.exp(grown)) + 1e-9))
        chosen = policy.choose(kind)
        assert (chosen is None) == (not scores)
        if chosen is not None:
            assert scores[chosen] >= max(scores.values())


def test_the_frequencies_of_typical_pods_add_up_to_one() -> None:
    """Free GPU that no typical pod can use is unusable as a whole, though rare pods are not typical."""
    rows = NodeRows([NodeKind(0, 393_216, 4, "T4")])
    common, rare = PodKind(1_000, 1_024, 1), PodKind(2_000, 1_024, 1)
    assert Unusable(rows, [common] * 97 + [rare] * 3).part() == 1


def test_fgd_keeps_whole_gpus_together_for_pods_with_several() -> None:
    """A share opens a GPU of the node that still has enough whole GPUs for the typical pod afterwards."""
    typical, share = PodKind(1_000, 1_024, 4), PodKind(1_000, 1_024, 1, 50)
    rows = NodeRows([NodeKind(96_000, 393_216, 4, "T4"), NodeKind(96_000, 393_216, 5, "T4")])
    chosen = COMPARED["fgd"](Setting(rows, [typical], np.random.default_rng(0))).choose(share)
    assert chosen == (1, (0,))


HALF, FOUR = PodKind(1_000, 1_024, 1, 50), PodKind(32_000, 1_024, 4)


@pytest.mark.parametrize(
    ("policy", "pod", "expected"),
    [
        ("binpack", HALF, (0, (1,))),
        ("spread", HALF, (1, (0,))),
        ("best-fit", HALF, (2, (0,))),
        ("worst-fit", HALF, (1, (0,))),
        ("dot-product", FOUR, (2, (0, 1, 2, 3))),
    ],
)
def test_simple_policies_score_what_would_be_left(
    policy: str, pod: PodKind, expected: tuple[int, tuple[int, ...]]
) -> None:
    """A pod goes to the fullest or emptiest node, that with least or most left, or that with least CPU beside GPUs."""
    node = NodeKind(96_000, 393_216, 4, "T4")
    rows = NodeRows([node, node, NodeKind(32_000, 393_216, 4, "T4")])
    compared = COMPARED[policy](Setting(rows, [], np.random.default_rng(0)))
    for gpu, percent in ((0, 20), (1, 50)):
        kind = PodKind(1_000, 1_024, 1, percent)
        rows.take(kind, rows.spot(0, kind, gpu))
    assert compared.choose(pod) == expected


@pytest.mark.parametrize("policy", COMPARED)
def test_a_policy_chooses_only_spots_with_room(policy: str) -> None:
    """No policy takes more than is free, over a life in which a small cluster becomes full."""
    chance = Random(5)  # noqa: S311 - no secret
    rows = NodeRows([a_node(chance) for _ in range(6)])
    pods = [a_pod(chance) for _ in range(300)]
    compared = COMPARED[policy](Setting(rows, pods, np.random.default_rng(0)))
    refused = 0
    for kind in pods:
        compared.see(kind)
        if (spot := compared.choose(kind)) is None:
            refused += 1
            assert not rows.fitting(kind).size
            continue
        assert len(spot.gpus) == kind.gpus
        rows.take(kind, spot)
        compared.changed(spot.row)
        assert min(rows.free.min(), rows.free_cpu.min(), rows.free_memory.min()) >= 0
        assert not kind.models or rows.models[rows.model[spot.row]] in kind.models
    assert 0 < refused < 300
