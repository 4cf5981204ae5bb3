"""Every name that others rely on, and its level of stability.

The names come from the code, the chart and the outputs recorded by `tests/skin`. `generators/interfaces.yaml` gives
each of them a level, or a test fails. `docs/upgrades.md` says what the levels mean.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import click
import yaml

from generators import alerts_page, chart_values, log_events
from generators.pages import DOCUMENTS
from gpushare_plugin.cli.main import COMMANDS, commands
from gpushare_plugin.config.schema.fields import Kind, keys, sections
from gpushare_plugin.observe.events import EVENTS
from gpushare_plugin.observe.metrics.extender import EXTENDER_METRICS
from gpushare_plugin.observe.metrics.node import METRICS
from gpushare_plugin.observe.metrics.partitioner import PARTITIONER_METRICS
from gpushare_plugin.observe.metrics.web import WEB_METRICS

ROOT = DOCUMENTS.parent
FILE = Path(__file__).with_name("interfaces.yaml")
REMEDY = "give each name a level in generators/interfaces.yaml (docs/upgrades.md says what the levels mean)"

Level = Literal["stable", "beta", "internal"]
LEVELS: tuple[Level, ...] = get_args(Level)

_KEY = re.compile(
    r"(gpushare|[a-z0-9-]+(\.[a-z0-9-]+)+)/[A-Za-z0-9._-]+|(ack|scheduler\.framework|cgpu)\.[a-z.]+|ALIYUN_COM_[A-Z_]+"
)
"""A key of a label or an annotation, or the name of a resource."""
_OF_OTHERS = re.compile(r"(.*\.)?(kubernetes\.io|k8s\.io)/.*|example\.com/.*")
_EXAMPLES = ((r"mig-\d+g\.\d+gb", "mig-PROFILE"), (r"gpu-(\d+-)?\d+gb$", "gpu-SIZE"), (r"-$", "-SIZE"))
"""What stands for a profile or a size in a name."""


def config_keys() -> Iterator[str]:
    """Yield the keys of a config file, and the words that a key accepts."""
    for path, section in sections():
        for key, field in keys(section).items():
            place = ".".join("[]" if isinstance(each, int) else str(each) for each in (*path, key)).replace(".[]", "[]")
            yield place
            kind = Kind.of(field.annotation, tuple(field.metadata))
            yield from (f"{place}={word}" for word in (kind.item or kind).words)


def options() -> Iterator[str]:
    """Yield the commands with their options and arguments."""
    for name in COMMANDS:
        yield name
        for parameter in commands.load(name).params:
            if isinstance(parameter, click.Option):
                yield from (f"{name} {option}" for option in (*parameter.opts, *parameter.secondary_opts))


def variables() -> Iterator[str]:
    """Yield the environment variables that commands read."""
    for name in COMMANDS:
        for parameter in commands.load(name).params:
            names = parameter.envvar or ()
            yield from (names,) if isinstance(names, str) else names


def metrics() -> Iterator[str]:
    """Yield the names of all metrics."""
    yield from (
        metric.name for each in (METRICS, EXTENDER_METRICS, PARTITIONER_METRICS, WEB_METRICS) for metric in each
    )


def kubernetes_keys() -> Iterator[str]:
    """Yield the keys of labels and annotations and the names of resources, written or read."""
    for file in sorted((ROOT / "gpushare_plugin").rglob("*.py")):
        if "testing" not in file.parts:
            yield from _ours(_constants(file.read_text()))
    for file in sorted((ROOT / "tests/skin/golden").rglob("*.json")):
        yield from _ours(re.findall(r'"([^"\\]+)":', file.read_text()))


def _ours(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        if _KEY.fullmatch(text) and not _OF_OTHERS.fullmatch(text):
            for example, name in _EXAMPLES:
                text = re.sub(example, name, text)  # noqa: PLW2901 - one after another
            yield text


def _constants(source: str) -> Iterator[str]:
    """Yield the texts that constants of a module are."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            for each in ast.walk(statement.value):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each.value


def json_fields() -> Iterator[str]:
    """Yield the fields of what commands print with `-o json`, as recorded."""
    for command in ("check-config", "doctor", "explain", "inspect", "list"):
        for file in sorted((ROOT / "tests/skin/golden").glob(f"*/{command}*.json")):
            yield from (f"{command} {path}" for path in _paths(_recorded(file), ""))


def _recorded(file: Path) -> Any:
    """Return what a recorded output has; what differs from run to run is masked there, also where that is no text."""
    text = re.sub(r"(?<=: )<[a-z]+>(?=,?$)", "null", file.read_text(), flags=re.MULTILINE)
    found, _ = json.JSONDecoder().raw_decode(text)  # several outputs may follow each other
    return found


def _paths(data: Any, before: str) -> Iterator[str]:
    if isinstance(data, list):
        for each in data:
            yield from _paths(each, f"{before}[]")
    elif isinstance(data, dict):
        for key, value in data.items():
            # The keys of some mappings are names, such as those of resources, and no fields.
            path = f"{before}.{key}" if re.fullmatch(r"[a-z][A-Za-z]*", key) else f"{before}.*"
            yield path.lstrip(".")
            yield from _paths(value, path)


INTERFACES: Mapping[str, Callable[[], Iterator[str]]] = {
    "config `v1`: keys and words": config_keys,
    "commands and options": options,
    "environment variables": variables,
    "labels, annotations, resources": kubernetes_keys,
    "metrics": metrics,
    "alerts": lambda: (alert.name for alert in alerts_page.alerts()),
    "fields of `-o json`": json_fields,
    "reasons of Events": lambda: (kind.reason for kind in EVENTS),
    "events of the log": lambda: (event.name for event in log_events.events()),
    "values of the chart": lambda: (value.place for value in chart_values.values()),
}
"""The interfaces whose names are enumerated."""


def levels() -> dict[str, dict[Level, list[str]]]:
    """Return the names of each level, by interface, as interfaces.yaml has them."""
    return {name: found or {} for name, found in yaml.safe_load(FILE.read_text()).items()}
