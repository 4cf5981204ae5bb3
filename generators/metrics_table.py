"""Every metric; `python -m generators.metrics_table` writes them as tables into `docs/metrics.md`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from generators.pages import DOCUMENTS, names_as_code, with_table
from gpushare_plugin.observe.metrics.extender import EXTENDER_METRICS
from gpushare_plugin.observe.metrics.metric import Metric
from gpushare_plugin.observe.metrics.node import METRICS
from gpushare_plugin.observe.metrics.partitioner import PARTITIONER_METRICS
from gpushare_plugin.observe.metrics.web import WEB_METRICS

PAGE = DOCUMENTS / "metrics.md"

_CONTAINER = ("namespace", "pod", "container", "index", "uuid", "resource")
_GPU = ("index", "uuid")
"""Labels of all metrics of a table; the page names them once, above the tables."""

_PROGRAMS: dict[str, Sequence[Metric[Any]]] = {
    "Scheduler extender": EXTENDER_METRICS,
    "Partitioner": PARTITIONER_METRICS,
    "Pages": WEB_METRICS,
}
"""Programs beside the daemon; the help text of each metric begins with the word for its program."""


def page() -> str:
    """Return the page with its tables generated again."""
    return with_table(PAGE, [line for title, rows in _tables() for line in (f"### {title}", "", *rows, "")][:-1])


def _tables() -> Iterator[tuple[str, list[str]]]:
    of_containers = [each for each in METRICS if _begins(each, _CONTAINER)]
    of_gpus = [each for each in METRICS if _begins(each, _GPU)]
    yield "GPUs", _table(_row([each], len(_GPU), each.help) for each in of_gpus)
    yield "Containers", _table(_row([each], len(_CONTAINER), each.help) for each in of_containers)
    rest = [each for each in METRICS if each not in of_gpus and each not in of_containers]
    yield "Daemon", _table(_row([each], 0, each.help) for each in rest)
    alike: dict[str, list[Metric[Any]]] = {}
    for program, metrics in _PROGRAMS.items():
        for each in metrics:
            alike.setdefault(_without(program, each.help), []).append(each)
    yield "Several programs", _table(_row(each, 0, text) for text, each in alike.items() if len(each) > 1)
    for program, metrics in _PROGRAMS.items():
        texts = {_without(program, each.help): each for each in metrics}
        yield program, _table(_row([each], 0, text) for text, each in texts.items() if len(alike[text]) == 1)


def _begins(metric: Metric[Any], labels: tuple[str, ...]) -> bool:
    return metric.labels[: len(labels)] == labels


def _without(program: str, text: str) -> str:
    _, _, rest = text.partition(program)
    rest = rest.lstrip(":, ")
    return rest[:1].upper() + rest[1:]


def _table(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    cells = [("metric", "labels", "meaning"), ("---", "---", "---"), *rows]
    labelled = any(labels for _, labels, _ in cells[2:])
    return [f"| {name} | {labels} | {text} |" if labelled else f"| {name} | {text} |" for name, labels, text in cells]


def _row(metrics: Sequence[Metric[Any]], skipped: int, text: str) -> tuple[str, str, str]:
    return names_as_code(each.name for each in metrics), names_as_code(metrics[0].labels[skipped:]), text


if __name__ == "__main__":
    PAGE.write_text(page())
