"""The use of a node, read back from the page of metrics of the node's daemon.

The page comes from a program that may be old, broken or lying: what is no figure of use is unknown.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import in_words
from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Usage

MOST_LINES = 20_000
"""The most lines about use on a page: a daemon has up to 1000 containers with series, and four of these count here."""
LONGEST_LINE = 2048
"""The most characters of a line: names of Kubernetes have 253 characters at most. The parser is slow on long lines."""
MOST_BYTES = 1 << 44
"""More memory than any GPU has, in bytes: a larger figure is unknown."""

_MEMORY_TOTAL = "gpushare_gpu_memory_bytes"
_MEMORY_USED = "gpushare_gpu_memory_used_bytes"
_UTILIZATION = "gpushare_gpu_utilization_ratio"
_CONTAINER_MEMORY = "gpushare_container_memory_used_bytes"
_CONTAINER_UTILIZATION = "gpushare_container_utilization_ratio"
_CONTAINER_LIMIT = "gpushare_container_limit_in_effect"
_CONTAINER_UNITS = "gpushare_container_units"
_AGE = "gpushare_usage_age_seconds"
_MOST = {
    _MEMORY_TOTAL: MOST_BYTES,
    _MEMORY_USED: MOST_BYTES,
    _UTILIZATION: 1,
    _CONTAINER_MEMORY: MOST_BYTES,
    _CONTAINER_UTILIZATION: 1,
    _CONTAINER_LIMIT: 1,
    _CONTAINER_UNITS: MOST_BYTES,
    _AGE: MOST_BYTES,
}
"""The metrics that count (`observe/metrics/node.py`), and the largest figure of each; the smallest one is 0."""


class UnreadableMetricsError(GpushareError):
    """A page is none of Prometheus' text format, or too long; the message says why."""


class _ContainerKey(Struct, frozen=True):
    namespace: str
    pod: str
    container: str
    gpu: str
    resource: str


_Figures = dict[str, float]
"""The figures of one GPU or container, by the metric."""


def usage_of(page: bytes) -> Usage:
    """Return the use that a page of metrics has; raises UnreadableMetricsError."""
    gpus, containers, age = dict[str, _Figures](), dict[_ContainerKey, _Figures](), 0.0
    for name, labels, value in _samples(page):
        if name == _AGE:
            age = value
        elif "pod" in labels:
            key = _ContainerKey(
                *(labels.get(each, "") for each in ("namespace", "pod", "container", "uuid", "resource"))
            )
            containers.setdefault(key, {})[name] = value
        else:
            gpus.setdefault(labels.get("uuid", ""), {})[name] = value
    return Usage(
        tuple(_gpu(uuid, figures) for uuid, figures in gpus.items()),
        tuple(_container(key, figures) for key, figures in containers.items()),
        age,
    )


def _samples(page: bytes) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield the figures of the page that count, each with its labels."""
    try:
        for family in text_string_to_metric_families(_about_use(page)):
            for each in family.samples:
                if 0 <= each.value <= _MOST[each.name]:
                    yield each.name, each.labels, each.value
    except (ValueError, KeyError, IndexError) as error:
        raise UnreadableMetricsError(f"the page of metrics is not valid: {in_words(error)}") from error


def _about_use(page: bytes) -> str:
    """Return the lines about use; the parser sees no others."""
    lines = [line for line in page.decode().split("\n") if line.partition("{")[0].partition(" ")[0] in _MOST]
    if len(lines) > MOST_LINES:
        raise UnreadableMetricsError(f"the page of metrics has {len(lines)} lines about use, and {MOST_LINES} may be")
    if any(len(line) > LONGEST_LINE for line in lines):
        raise UnreadableMetricsError(f"the page of metrics has a line of more than {LONGEST_LINE} characters")
    return "\n".join(lines)


def _whole(figures: _Figures, name: str) -> int | None:
    return None if (found := figures.get(name)) is None else int(found)


def _gpu(uuid: str, figures: _Figures) -> GpuUsage:
    total, used = _whole(figures, _MEMORY_TOTAL), _whole(figures, _MEMORY_USED)
    return GpuUsage(uuid, total, used, figures.get(_UTILIZATION))


def _container(key: _ContainerKey, figures: _Figures) -> ContainerUsage:
    return ContainerUsage(
        key.namespace,
        key.pod,
        key.container,
        uid="",
        gpu=key.gpu,
        resource=key.resource,
        units=_whole(figures, _CONTAINER_UNITS) or 0,
        used=_whole(figures, _CONTAINER_MEMORY),
        utilization=figures.get(_CONTAINER_UTILIZATION),
        effect=_effect(figures.get(_CONTAINER_LIMIT)),
    )


def _effect(figure: float | None) -> Effect | None:
    if figure is None:
        return None
    return IN_EFFECT if figure else not_in_effect("the log of the node's daemon says why (limit_not_in_effect)")
