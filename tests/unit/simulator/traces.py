"""A small trace by chance, with shares of sizes that leave parts over."""

from pathlib import Path
from random import Random

from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.trace import Trace

NODES = (
    *[NodeKind(cpu=96_000, memory=393_216, gpus=8, model="G2")] * 8,
    *[NodeKind(cpu=104_000, memory=524_288, gpus=2, model="T4")] * 8,
    *[NodeKind(cpu=16_000, memory=122_880, gpus=2, model="P100")] * 4,
)


def a_trace(pods: int = 120) -> Trace:
    """Return twenty nodes with 88 GPUs, and pods, the same ones each time."""
    chance = Random(1)  # noqa: S311 - no secret
    return Trace(NODES, tuple(_pod(chance) for _ in range(pods)))


def _pod(chance: Random) -> PodKind:
    gpus = chance.choices((0, 1, 2), (2, 12, 1))[0]
    percent = chance.choice((32, 47, 81, 81, 100, 100, 100)) if gpus == 1 else 100
    return PodKind(chance.choice((2_000, 6_000, 11_000)), 8_192, gpus, percent)


def written(trace: Trace, directory: Path) -> tuple[Path, Path]:
    """Write a trace as the files `nodes.csv` and `pods.csv`; return their paths."""
    nodes, pods = directory / "nodes.csv", directory / "pods.csv"
    lines = [f"n{number},{node.cpu},{node.memory},{node.gpus},{node.model}" for number, node in enumerate(trace.nodes)]
    nodes.write_text("\n".join(("sn,cpu_milli,memory_mib,gpu,model", *lines)) + "\n")
    lines = [
        f"p{number},{pod.cpu},{pod.memory},{pod.gpus},{pod.percent * 10 * min(1, pod.gpus)},{'|'.join(pod.models)}"
        for number, pod in enumerate(trace.pods)
    ]
    pods.write_text("\n".join(("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec", *lines)) + "\n")
    return nodes, pods
