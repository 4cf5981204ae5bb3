"""Pages of metrics as a daemon of a node has them."""

from collections.abc import Iterator, Mapping

from tests.unit.ledger.objects import uuid

GIB = 1 << 30
MIB = 1 << 20


def page(*lines: str) -> bytes:
    """Return a page with some lines."""
    return "".join(f"{line}\n" for line in ("# HELP other Other.", "# TYPE other gauge", "other 1", *lines)).encode()


def gpu_lines(node: str, index: int, used: int, total: int = 16 * GIB, compute: float = 0.5) -> Iterator[str]:
    """Yield the lines about a GPU of a node, in bytes."""
    labels = f'{{index="{index}",uuid="{uuid(index, node)}"}}'
    yield f"gpushare_gpu_memory_bytes{labels} {total}"
    yield f"gpushare_gpu_memory_used_bytes{labels} {used}"
    yield f"gpushare_gpu_utilization_ratio{labels} {compute}"


def container_lines(
    node: str, index: int, pod: str, namespace: str = "default", container: str = "main", **figures: float
) -> Iterator[str]:
    """Yield the lines about a container of a pod: `memory_used_bytes` and so on, by the names of the metrics."""
    names: Mapping[str, str] = {
        "container": container,
        "index": str(index),
        "namespace": namespace,
        "pod": pod,
        "resource": "aliyun.com/gpu-mem",
        "uuid": uuid(index, node),
    }
    labels = ",".join(f'{name}="{value}"' for name, value in names.items())
    for name, value in {"units": 1, **figures}.items():
        yield f"gpushare_container_{name}{{{labels}}} {value}"
