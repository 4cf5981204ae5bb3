"""Rounds of decisions of automatic partitioning, decided in a process of their own; prints what they took as JSON.

Arguments: the number of nodes, of waiting pods and of rounds, how much of the GPUs is cut into slices (0 to 1), and how
many of these pods hold (0 to 1).
"""

import json
import random
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

from gpushare_plugin.ledger.constraints import Constraints, shared_needs
from gpushare_plugin.ledger.demand import NOTHING
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import ANY_GPU, ContainerRequest, PodRequest, shared_request
from gpushare_plugin.partition.decide import decide
from gpushare_plugin.partition.nodes import PartitionGpu, PartitionNode
from gpushare_plugin.partition.taking_back import RoundRules
from gpushare_plugin.slices.memory import MemoryRoom
from gpushare_plugin.slices.slice import Slice
from gpushare_plugin.slices.wanted import Wanted

_GPUS = 8
_KINDS = 8
"""Different constraints that pods have; each keeps them from a third of the nodes."""
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def measured(nodes: int, pods: int, rounds: int, cut: float, held: float) -> Mapping[str, object]:
    """Return the seconds of CPU of each round, the MiB that the process takes with and without them, and the pods."""
    cluster = _nodes(random.Random(1), nodes, cut, held)  # noqa: S311 - the same cluster each time
    before, seconds, served = _resident(), list[float](), 0
    for number in range(rounds):
        waiting = _pods(random.Random(number), pods)  # noqa: S311 - the same pods each time
        rules = RoundRules(_runs_on, {pod.uid for pod in waiting})
        began = time.process_time()
        decisions = decide(cluster, waiting, _NOW, rules)
        seconds.append(time.process_time() - began)
        served += len(decisions.assigned)
    return {"seconds": seconds, "before": before, "most": _most_resident(), "served": served / rounds}


def _nodes(chance: random.Random, count: int, cut: float, held: float) -> list[PartitionNode]:
    """Return nodes of which no two are alike, with slices of four sizes."""
    return [_node(chance, f"node-{number}", cut, held) for number in range(count)]


def _node(chance: random.Random, name: str, cut: float, share: float) -> PartitionNode:
    gpus = []
    for index in range(_GPUS):
        room = MemoryRoom(chance.choice((40, 80)))
        held, listed, left = dict[str, int](), dict[str, int](), int(room.parts * cut)
        while left >= _SMALLEST:
            size = min(left, chance.choice((_SMALLEST, 10, 20, 30)))
            kinds = (held, listed) if chance.random() < share else (listed,)
            for kind in kinds:
                kind[f"{size}gb"] = kind.get(f"{size}gb", 0) + 1
            left -= size
        gpus.append(PartitionGpu(f"GPU-{name}-{index}", index, room, "A100", listed, held))
    return PartitionNode(name, tuple(gpus), Wanted({gpu.uuid: gpu.listed for gpu in gpus}))


_SMALLEST = 5


def _pods(chance: random.Random, count: int) -> list[Pod]:
    """Return pods of six sizes, one in five with two slices, one in four more important than the others."""
    return [
        Pod(
            f"pod-{number}",
            "default",
            f"pod-{number}",
            _asked(chance),
            created=_NOW - timedelta(seconds=count - number),
            priority=chance.choice((0, 0, 0, 100)),
            needs=shared_needs(Constraints((("kind", str(chance.randrange(_KINDS))),)), NOTHING),
        )
        for number in range(count)
    ]


def _asked(chance: random.Random) -> PodRequest:
    sizes = sorted((chance.choice((4, 5, 10, 12, 20, 40)) for _ in range(chance.choice((1, 1, 1, 1, 2)))), reverse=True)
    asked = [((Slice("mps", f"{size}gb").resource, 1),) for size in sizes]
    containers = tuple(ContainerRequest(str(number), "app", each) for number, each in enumerate(asked))
    return shared_request(containers, 1, ANY_GPU, None, None, ())


def _runs_on(pod: Pod, node: str, _beside: Sequence[Pod]) -> str | None:
    ((_, kind),) = pod.needs.constraints.selector
    return "not allowed there" if crc32(f"{node} {kind}".encode()) % 3 == 0 else None


def _resident() -> float:
    """Return the resident MiB of this process now (proc(5))."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024**2


def _most_resident() -> float:
    """Return the most resident MiB that this program ever had (proc(5)).

    What getrusage(2) says of a process begins with what its parent had: a whole run of the benchmarks has 148 MiB, and
    each of its processes then seemed to have as much.
    """
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    _nodes_, _pods_, _rounds, _cut, _held = sys.argv[1:]
    sys.stdout.write(json.dumps(measured(int(_nodes_), int(_pods_), int(_rounds), float(_cut), float(_held))))
