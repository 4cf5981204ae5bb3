"""Tests of `gpushare_plugin.core.chooser`."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.chooser import close_gpus, one_gpu, replicas
from gpushare_plugin.core.policies import PolicyName, ReplicaPolicyName, UnitCounts

GPUS = [f"GPU-{number}" for number in range(8)]


def occupied(*free: int, total: int = 10) -> dict[str, UnitCounts]:
    """Return GPUs of `total` units with so many free."""
    return {GPUS[index]: UnitCounts(index, units, total) for index, units in enumerate(free)}


@pytest.mark.parametrize(
    ("policy", "size", "expected"),
    [
        ("binpack", 3, "GPU-1"),  # 4 free is the least that holds 3
        ("binpack", 5, "GPU-2"),
        ("spread", 3, "GPU-0"),
        ("spread", 9, "GPU-0"),
        ("binpack", 10, None),
        ("spread", 10, None),
    ],
)
def test_a_single_gpu_takes_the_whole_request(policy: PolicyName, size: int, expected: str | None) -> None:
    """Binpack takes the fullest GPU that still fits, spread the emptiest; none when no GPU fits."""
    assert one_gpu(occupied(9, 4, 6, 2), size, policy) == expected


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_the_lowest_index_breaks_a_tie(policy: PolicyName) -> None:
    """Equal GPUs are taken in order, so placement is repeatable."""
    assert one_gpu(occupied(5, 5, 5), 2, policy) == "GPU-0"


@given(st.lists(st.integers(0, 10), min_size=1, max_size=8), st.integers(1, 12))
def test_a_request_is_placed_exactly_if_one_gpu_has_room(free: list[int], size: int) -> None:
    """A GPU is found exactly when one has enough free units."""
    for policy in ("binpack", "spread"):
        assert (one_gpu(occupied(*free), size, policy) is not None) == (max(free) >= size)


@pytest.mark.parametrize(
    ("policy", "free", "size", "expected"),
    [
        ("distributed", (10, 8, 9), 1, {0: 1}),
        ("packed", (10, 8, 9), 1, {1: 1}),
        ("distributed", (10, 8, 9), 2, {0: 1, 2: 1}),
        ("spread", (10, 8, 9), 1, {0: 1}),
        ("packed", (10, 8, 9), 2, {1: 2}),
        ("packed", (10, 2, 9), 3, {1: 2, 2: 1}),  # one GPU is filled, then the next one
        ("packed", (10, 10, 10), 3, {0: 3}),
        ("distributed", (10, 7, 9), 3, {0: 2, 2: 1}),
        ("spread", (10, 7, 9), 3, {0: 1, 1: 1, 2: 1}),
        ("distributed", (10, 0, 0), 3, {0: 3}),  # nothing else is left
        ("spread", (10, 0, 1), 3, {0: 2, 2: 1}),
        ("distributed", (10, 10, 10), 4, {0: 2, 1: 1, 2: 1}),
    ],
)
def test_replicas_come_from_the_gpus_of_the_policy(
    policy: ReplicaPolicyName, free: tuple[int, ...], size: int, expected: dict[int, int]
) -> None:
    """Each comes from the least (distributed) or most (packed) used GPU, or from another than the last (spread)."""
    picked = replicas(occupied(*free), {}, size, policy)
    assert {gpu: count for gpu, count in picked.items() if count} == {GPUS[i]: n for i, n in expected.items()}


@pytest.mark.parametrize(("policy", "expected"), [("distributed", 0), ("packed", 1), ("spread", 1)])
def test_replicas_that_a_request_already_holds_count(policy: ReplicaPolicyName, expected: int) -> None:
    """Of the GPU whose replica must be included the request has one more: to `spread` that decides before use does."""
    picked = replicas(occupied(9, 5), {"GPU-0": 1}, 1, policy)
    assert [gpu for gpu, count in picked.items() if count] == [GPUS[expected]]


@pytest.mark.parametrize("policy", ["distributed", "packed"])
def test_equally_used_gpus_alternate(policy: ReplicaPolicyName) -> None:
    """Of GPUs that are used alike, the one of which the request has less comes first, whatever its index."""
    assert replicas(occupied(5, 5), {"GPU-0": 1}, 1, policy)["GPU-1"] == 1


def closeness_of(pairs: dict[tuple[int, int], int]) -> dict[frozenset[str], int]:
    """Return closeness by UUID from closeness by number."""
    return {frozenset((GPUS[one], GPUS[other])): score for (one, other), score in pairs.items()}


def test_close_gpus_are_taken_together() -> None:
    """A request for two gets the pair that NVLink joins, not the first two."""
    closeness = closeness_of({(0, 1): 10, (1, 2): 230, (2, 3): 10, (0, 3): 40})
    assert set(close_gpus(GPUS[:4], [], 2, closeness)) == {"GPU-1", "GPU-2"}


def test_a_request_for_one_gpu_tears_no_pair_apart() -> None:
    """A request for one leaves pairs whole for the next request for two."""
    closeness = closeness_of({(0, 1): 230, (2, 3): 10, (0, 2): 10, (1, 2): 10, (0, 3): 10, (1, 3): 10})
    assert close_gpus(GPUS[:4], [], 1, closeness)[0] in {"GPU-2", "GPU-3"}


def test_gpus_that_must_be_included_decide_first() -> None:
    """The set grows around the GPUs that must be in it."""
    closeness = closeness_of({(0, 1): 230, (2, 3): 50})
    assert set(close_gpus(GPUS[:4], ["GPU-3"], 2, closeness)) == {"GPU-2", "GPU-3"}


def test_a_choice_among_32_gpus_ends_in_time() -> None:
    """Thirty-two GPUs, half of them asked for: a search of every combination would never end."""
    many = [f"GPU-{number}" for number in range(32)]
    assert len(close_gpus(many, [], 16, {frozenset(many[:2]): 1})) == 16


def within(chosen: tuple[str, ...], closeness: dict[frozenset[str], int]) -> int:
    """Return the sum over all pairs of a set."""
    return sum(closeness.get(frozenset(pair), 0) for pair in combinations(chosen, 2))


@given(st.lists(st.integers(0, 1), min_size=8, max_size=8), st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_the_closest_set_of_gpus_is_found_on_a_pci_tree(sockets: list[int], switches: list[int]) -> None:
    """Where closeness is a tree (socket, then PCI switch), growing finds what a search of all combinations finds."""

    def score(one: int, other: int) -> int:
        if sockets[one] != sockets[other]:
            return 10
        return 50 if switches[one] == switches[other] else 20

    closeness = closeness_of({pair: score(*pair) for pair in combinations(range(8), 2)})
    for size in (2, 3):
        best = max(within(chosen, closeness) for chosen in combinations(GPUS, size))
        assert within(close_gpus(GPUS, [], size, closeness), closeness) == best


def test_the_closest_four_gpus_are_found_on_a_hybrid_cube_mesh() -> None:
    """On the NVLinks of a DGX-1 (V100) a request for four gets one fully joined quad."""
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    closeness = closeness_of(dict.fromkeys(double, 200) | dict.fromkeys(single, 100))
    best = max(within(chosen, closeness) for chosen in combinations(GPUS, 4))
    assert within(close_gpus(GPUS, [], 4, closeness), closeness) == best


def grown_one_by_one(
    available: Sequence[str], must: Sequence[str], size: int, closeness: Mapping[frozenset[str], int]
) -> tuple[str, ...]:
    """Return what the policy means, literally: every set is grown from every GPU, each looking at all others again."""

    def near(gpu: str, others: Sequence[str]) -> int:
        return sum(closeness.get(frozenset((gpu, other)), 0) for other in others)

    def grow(chosen: list[str]) -> tuple[str, ...]:
        rest = [gpu for gpu in available if gpu not in chosen]
        while len(chosen) < size:
            best = max(rest, key=lambda gpu: (near(gpu, chosen), -near(gpu, rest)))
            chosen.append(best)
            rest.remove(best)
        return tuple(chosen)

    def quality(chosen: tuple[str, ...]) -> tuple[int, int]:
        rest = [gpu for gpu in available if gpu not in chosen]
        return sum(near(gpu, chosen) for gpu in chosen), -sum(near(gpu, rest) for gpu in chosen)

    return max((grow(seed) for seed in ([list(must)] if must else [[gpu] for gpu in available])), key=quality)


@given(st.data())
def test_the_choice_is_that_of_the_policy_taken_literally(data: st.DataObject) -> None:
    """Whatever the links, and whatever must be included, a bad GPU too: the same GPUs in the same order."""
    everyone = data.draw(st.permutations(GPUS))
    # A few kinds of GPUs make runs of alike ones, which single links then break.
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=8, max_size=8))
    scores = data.draw(st.lists(st.sampled_from([0, 10, 200]), min_size=9, max_size=9))
    closeness = {
        frozenset((GPUS[one], GPUS[other])): scores[3 * kinds[one] + kinds[other]]
        for one, other in combinations(range(8), 2)
    }
    closeness |= data.draw(st.dictionaries(st.sampled_from(sorted(closeness, key=sorted)), st.integers(0, 50)))
    available = everyone[: data.draw(st.integers(1, 8))]
    must = data.draw(st.lists(st.sampled_from(everyone), unique=True, max_size=len(available)))
    size = data.draw(st.integers(max(1, len(must)), len(available)))
    assert close_gpus(available, must, size, closeness) == grown_one_by_one(available, must, size, closeness)


class Counting(dict[frozenset[str], int]):
    """Closeness that counts how often somebody asks it anything."""

    asked = 0

    def get(self, pair: frozenset[str], default: int | None = None) -> int | None:  # type: ignore[override]
        """Count, and answer."""
        self.asked += 1
        return super().get(pair, default)

    def items(self) -> Any:
        """Count every pair, and give them."""
        self.asked += len(self)
        return super().items()


@pytest.mark.parametrize("size", [56, 112])
def test_a_choice_among_many_mig_instances_ends_in_time(size: int) -> None:
    """Sixteen cards in seven: each pair is looked at once, and a set grows once for each card, not for each part."""
    parts = [f"MIG-{card}-{number}" for card in range(16) for number in range(7)]
    closeness = Counting(
        {
            frozenset((one, other)): Added(50 if one.split("-")[1] == other.split("-")[1] else 10)
            for one, other in combinations(parts, 2)
        }
    )
    Added.times = 0
    chosen = close_gpus(parts, [], size, closeness)
    assert len(set(chosen)) == size
    assert closeness.asked <= len(closeness)
    assert Added.times <= 2 * len(closeness) + 16 * 16 * 112
    assert set(chosen[:7]) == set(parts[:7])


class Added(int):
    """A score that counts how often any is added to something."""

    times = 0

    def __radd__(self, other: float) -> float:  # type: ignore[override]
        """Count, and add."""
        Added.times += 1
        return other + int(self)
