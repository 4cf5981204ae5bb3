"""A trace: the nodes of a cluster and the pods that came, as CSV in the columns of Alibaba's cluster-trace-gpu-v2023.

The columns are explained in https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023.
"""

from collections.abc import Mapping
from pathlib import Path

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.csv_file import read_rows

MOST_GPUS = 64
"""The most GPUs of a node or a pod."""
MOST_NODES = 100_000
"""The most nodes of a simulation."""
MOST_PODS = 2_000_000
"""The most pods that come in a run of a simulation; more would take days."""
MOST_AMOUNT = 2**40
"""The highest amount of CPU or memory; more is a mistake."""
_MILLI = 1_000
"""A whole GPU, in thousandths."""
_SHOWN = 40
"""The most characters of a wrong value that a message has."""
_NODE_COLUMNS = ("cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
"""The columns of every pod file; `gpu_spec` may be left out."""


class Trace(Struct, frozen=True):
    """The nodes of a cluster, and pods."""

    nodes: tuple[NodeKind, ...]
    """The nodes, at least one with a GPU."""
    pods: tuple[PodKind, ...]
    """The pods, at least one with a GPU."""

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(node.gpus for node in self.nodes)

    @property
    def demand(self) -> float:
        """What all pods ask of GPUs, in GPUs."""
        return sum(pod.gpu_percent for pod in self.pods) / WHOLE


def read_nodes(file: Path) -> tuple[NodeKind, ...]:
    """Read nodes; raises GpushareError for a file that cannot be read or has no GPUs, with the line."""
    nodes = tuple(read_rows(file, _NODE_COLUMNS, _node))
    if not any(node.gpus for node in nodes):
        raise GpushareError(f"{file}: found no node with a GPU, expected one at least (column gpu)")
    return nodes


def read_pods(file: Path) -> tuple[PodKind, ...]:
    """Read pods; raises GpushareError for a file that cannot be read or has no pod with GPUs, with the line."""
    pods = tuple(read_rows(file, _POD_COLUMNS, _pod))
    if not any(pod.gpus for pod in pods):
        raise GpushareError(f"{file}: found no pod that asks for a GPU, expected one at least (column num_gpu)")
    return pods


def _node(row: Mapping[str, str]) -> NodeKind:
    gpus = _number(row, "gpu", MOST_GPUS)
    return NodeKind(
        cpu=_number(row, "cpu_milli", MOST_AMOUNT),
        memory=_number(row, "memory_mib", MOST_AMOUNT),
        gpus=gpus,
        model=row["model"] if gpus else "",
    )


def _pod(row: Mapping[str, str]) -> PodKind:
    gpus = _number(row, "num_gpu", MOST_GPUS)
    return PodKind(
        cpu=_number(row, "cpu_milli", MOST_AMOUNT),
        memory=_number(row, "memory_mib", MOST_AMOUNT),
        gpus=gpus,
        percent=_percent(row, gpus),
        models=frozenset(filter(None, row.get("gpu_spec", "").split("|"))) if gpus else frozenset(),
    )


def _percent(row: Mapping[str, str], gpus: int) -> int:
    """Return the part of each GPU that a pod asks for, in percent, rounded up; all for a pod without GPUs."""
    if not gpus and not row["gpu_milli"]:
        return WHOLE
    milli = _number(row, "gpu_milli", _MILLI)
    least, most = (0, 0) if not gpus else (1, _MILLI) if gpus == 1 else (_MILLI, _MILLI)
    if not least <= milli <= most:
        expected = "0 without GPUs, 1 to 1000 with one GPU, 1000 with several"
        raise ValueError(f"found gpu_milli {milli} with num_gpu {gpus}, expected {expected}")
    return -(-milli // 10) if gpus else WHOLE


def _number(row: Mapping[str, str], column: str, most: int) -> int:
    text = row[column]
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(most)) else -1
    if not 0 <= number <= most:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise ValueError(f"found {column} {shown!r}, expected a whole number from 0 to {most}")
    return number
