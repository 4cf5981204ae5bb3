"""Clusters and pods by chance."""

from collections.abc import Iterator
from random import Random

from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind, NodeRows, Spot

NODES = (
    NodeKind(cpu=96_000, memory=393_216, gpus=8, model="G2"),
    NodeKind(cpu=64_000, memory=262_144, gpus=2, model="P100"),
    NodeKind(cpu=16_000, memory=122_880, gpus=2, model="P100"),
    NodeKind(cpu=96_000, memory=393_216, gpus=4, model="T4"),
    NodeKind(cpu=8_000, memory=61_440, gpus=1, model="P100"),
    NodeKind(cpu=32_000, memory=65_536, gpus=0),
)
"""Nodes of several kinds, with few or many GPUs and without any."""


def a_node(chance: Random) -> NodeKind:
    """Return any node."""
    return chance.choice(NODES)


def a_pod(chance: Random) -> PodKind:
    """Return any pod: a share, with one, several or no GPUs, of any model or of some."""
    models: frozenset[str] = chance.choice((frozenset(), frozenset(), frozenset({"T4"}), frozenset({"G2", "P100"})))
    cpu, memory = chance.choice((1_000, 4_000, 8_000)), chance.choice((4_096, 16_384))
    gpus = chance.choice((0, 1, 1, 1, 1, 2, 4))
    if not gpus:
        return PodKind(cpu, memory, 0)
    return PodKind(cpu, memory, gpus, chance.choice((11, 32, 47, 81, 100)) if gpus == 1 else 100, models)


def any_spot(rows: NodeRows, kind: PodKind, chance: Random) -> Spot | None:
    """Return any spot with room for a pod; None if there is none."""
    fitting = rows.fitting(kind).tolist()
    if not fitting:
        return None
    row = chance.choice(fitting)
    return rows.spot(
        row, kind, chance.choice([gpu for gpu, free in enumerate(rows.free[row]) if free >= kind.percent] or [0])
    )


def lives(rows: NodeRows, steps: int, chance: Random) -> Iterator[tuple[PodKind, Spot]]:
    """Place pods at any spots and remove others, in some steps; yield the pod and the spot after each."""
    placed: list[tuple[PodKind, Spot]] = []
    for _ in range(steps):
        kind = a_pod(chance)
        if (spot := any_spot(rows, kind, chance)) is not None:
            rows.take(kind, spot)
            placed.append((kind, spot))
        elif placed:
            kind, spot = placed.pop(chance.randrange(len(placed)))
            rows.give_back(kind, spot)
        else:
            continue
        yield kind, spot
