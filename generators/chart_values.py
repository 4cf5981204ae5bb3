"""Every value of the chart; `python -m generators.chart_values` writes them into the chart's `README.md`.

The meaning of a value is the comment above it in `values.yaml`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import yaml

from generators.pages import DOCUMENTS, with_table

CHART = DOCUMENTS.parent / "charts/gpushare"
PAGE = CHART / "README.md"

_WHOLE = frozenset(
    {"livenessProbe", "nodeSelector", "readinessProbe", "resources", "updateStrategy", "securityContext"}
)
"""Mappings whose keys are those of Kubernetes, so that they are one value."""


class Value(NamedTuple):
    """A value of the chart: its place, such as `mps.root`, its default as YAML in one line, and its meaning."""

    place: str
    default: str
    meaning: str


def values() -> Iterator[Value]:
    """Yield every value in the order of `values.yaml`."""
    text = (CHART / "values.yaml").read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise TypeError(f"values.yaml has {root}, expected a mapping")
    yield from _below(root, "", text.splitlines())


def _below(mapping: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[Value]:
    for key, node in mapping.value:
        place = f"{prefix}{key.value}"
        if isinstance(node, yaml.MappingNode) and node.value and key.value not in _WHOLE:
            yield from _below(node, f"{place}.", lines)
            continue
        yield Value(place, _in_one_line(node), _comment_above(lines, key.start_mark.line))


def _in_one_line(node: yaml.Node) -> str:
    default = yaml.safe_load(yaml.serialize(node))
    dumped: str = yaml.safe_dump(default, default_flow_style=True, width=10_000, sort_keys=False)
    return dumped.removesuffix("\n...\n").strip().replace("''", '""')


def _comment_above(lines: list[str], line: int) -> str:
    """Return the comment that ends just above a line, without its indented lines, which are examples."""
    comment: list[str] = []
    while line > 0 and (above := lines[line - 1].strip()).startswith("# "):
        line -= 1
        if not above.startswith("#  "):
            comment.insert(0, above.removeprefix("# "))
    return " ".join(comment)


def page() -> str:
    """Return the page with its table generated again."""
    return with_table(PAGE, ["| value | default | meaning |", "|---|---|---|", *map(_row, values())])


def _row(value: Value) -> str:
    meaning = value.meaning.replace("|", "\\|").replace("<", "\\<")
    return f"| `{value.place}` | `{value.default}` | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(page())
