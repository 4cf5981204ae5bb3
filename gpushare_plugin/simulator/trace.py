"""A trace: the nodes of a cluster and the pods that came, as CSV in the columns of Alibaba's cluster-trace-gpu-v2023.

The columns are explained in https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.packing.rows import NodeKind

Read = TypeVar("Read")

MOST_GPUS = 64
"""The most GPUs of a node or a pod."""
MOST_LINES = 2_000_000
"""The most nodes or pods of a file."""
_MOST = 2**40
"""The highest amount of CPU or memory; more is a mistake."""
_MILLI = 1_000
"""A whole GPU, in thousandths."""


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


def read_trace(nodes: Path, pods: Path) -> Trace:
    """Read a trace; raises GpushareError for a file that cannot be read or is no trace, with the line."""
    trace = Trace(tuple(_rows(nodes, _node)), tuple(_rows(pods, _pod)))
    if not trace.gpus:
        raise GpushareError(f"{nodes}: found no node with a GPU, expected one at least (column gpu)")
    if not trace.demand:
        raise GpushareError(f"{pods}: found no pod that asks for a GPU, expected one at least (column num_gpu)")
    return trace


def _rows(file: Path, read: Callable[[Mapping[str, str]], Read]) -> Iterator[Read]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines)
            for row in rows:
                if rows.line_num > MOST_LINES:
                    raise GpushareError(f"{file}: found more than {MOST_LINES:,} lines; simulate a part of them")
                try:
                    yield read(row)
                except ValueError as error:
                    raise GpushareError(f"{file}:{rows.line_num}: {error}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GpushareError(f"cannot read {file}: {error}") from error


def _node(row: Mapping[str, str]) -> NodeKind:
    gpus = _number(row, "gpu", MOST_GPUS)
    return NodeKind(
        cpu=_number(row, "cpu_milli", _MOST),
        memory=_number(row, "memory_mib", _MOST),
        gpus=gpus,
        model=_text(row, "model") if gpus else "",
    )


def _pod(row: Mapping[str, str]) -> PodKind:
    gpus = _number(row, "num_gpu", MOST_GPUS)
    milli = _number(row, "gpu_milli", _MILLI) if gpus else 0
    if gpus and milli < (_MILLI if gpus > 1 else 1):
        raise ValueError(f"found gpu_milli {milli} with num_gpu {gpus}, expected 1 to 1000, and 1000 for several GPUs")
    return PodKind(
        cpu=_number(row, "cpu_milli", _MOST),
        memory=_number(row, "memory_mib", _MOST),
        gpus=gpus,
        percent=-(-milli // 10) if gpus else WHOLE,
        models=frozenset(filter(None, (row.get("gpu_spec") or "").strip().split("|"))) if gpus else frozenset(),
    )


def _text(row: Mapping[str, str], column: str) -> str:
    if (text := row.get(column)) is None:
        raise ValueError(f"found no value of column {column}, expected one in each line")
    return text.strip()


def _number(row: Mapping[str, str], column: str, most: int) -> int:
    text = _text(row, column)
    number = int(text) if text.isascii() and text.isdigit() and len(text) < len(str(_MOST)) else -1
    if not 0 <= number <= most:
        raise ValueError(f"found {column} {text!r}, expected a whole number from 0 to {most}")
    return number
