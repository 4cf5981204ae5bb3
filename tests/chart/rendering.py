"""Renders the chart with Helm's own engine, and keeps what is committed of its output what the chart makes.

That is the static manifests, for clusters without Helm, and for each of the example values the golden output, which
reviews see change.
`python -m tests.chart.rendering` exits 1 when any of it is stale; `--write` writes it.
"""

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "charts/gpushare"
STATIC = ROOT / "charts/static"
EXAMPLE_VALUES = ROOT / "examples/values"
GOLDEN = Path(__file__).parent / "golden"

STATIC_VALUES: dict[str, dict[str, Any]] = {
    "gpushare.yaml": {},
    "gpushare-mps.yaml": {"mps": {"enabled": True}},
    "gpushare-driver-limits.yaml": {"cluster": {"followPods": True}, "driverLimits": {"enabled": True}},
    "gpushare-extender.yaml": {"scheduler": {"enabled": True, "service": {"nodePort": 32766}}},
    "gpushare-scheduler.yaml": {
        "scheduler": {"enabled": True, "kubeScheduler": {"enabled": True, "image": {"tag": "v1.36.2"}}}
    },
    "gpushare-partitioning.yaml": {
        "mps": {"enabled": True},
        "partitioning": {"enabled": True, "mig": {"enabled": True}},
    },
    "gpushare-web.yaml": {"web": {"enabled": True, "tls": {"secretName": "gpushare-web-tls"}}},
}
"""The static manifests, each by the values that it is made with: the daemon, and what works with the daemon."""

_STATIC_HEADER = """\
# gpushare on every node with GPUs, made from charts/gpushare with {values}; docs/install.md ("Without Helm").
# Put your image in, and `runtimeClassName: nvidia` into the spec of pods on these nodes where it is not the default.
"""
_GOLDEN_HEADER = "# What the chart makes of examples/values/{name}; `make generate` writes this file.\n"


def templates(
    values: dict[str, Any] | None = None, release: str = "gpushare", *, upgrade: bool = False
) -> dict[str, str]:
    """Return the rendered text of each template of the chart; raises HelmError for values that are refused."""
    return dict(_rendered(json.dumps(values or {}), release, upgrade))


@lru_cache(maxsize=64)  # a test asks for several objects of the same values
def _rendered(values: str, release: str, upgrade: bool) -> dict[str, str]:  # noqa: FBT001 - to be cached by
    return render(CHART, json.loads(values), release, upgrade=upgrade)


def render(folder: Path, values: dict[str, Any], release: str = "gpushare", *, upgrade: bool = False) -> dict[str, str]:
    """Return the text that each template of the chart in a folder becomes, anew each time."""
    with helm_python.Chart.load(folder) as chart:
        texts = chart.render(values, name=release, namespace="kube-system", is_upgrade=upgrade)
    return {path.removeprefix("gpushare/templates/"): text for path, text in texts.items()}


def objects(values: dict[str, Any] | None = None, release: str = "gpushare") -> list[dict[str, Any]]:
    """Return the Kubernetes objects that the chart makes."""
    return parsed(templates(values, release))


def parsed(texts: dict[str, str]) -> list[dict[str, Any]]:
    """Return the Kubernetes objects in the text of templates."""
    documents = yaml.load_all("---\n".join(_documents(texts)), yaml.CSafeLoader)
    return [found for found in documents if found is not None]


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return values with more values over them, deeply, as Helm does; both stay as they are."""
    deeper = {
        key: merged(values[key], value)
        for key, value in more.items()
        if isinstance(value, dict) and isinstance(values.get(key), dict)
    }
    return {**values, **more, **deeper}


def yaml_of(file: Path) -> dict[str, Any]:
    """Return the values in a file."""
    values: dict[str, Any] = yaml.load(file.read_text(), yaml.CSafeLoader)
    return values


def of_hooks(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects that Helm makes only when something happens to the release."""
    return [each for each in made if "helm.sh/hook" in each["metadata"].get("annotations", {})]


def committed() -> list[Path]:
    """Return the committed files that are made from the chart."""
    static = [STATIC / name for name in STATIC_VALUES]
    return [*static, *(GOLDEN / example.name for example in sorted(EXAMPLE_VALUES.iterdir()))]


def fresh(path: Path) -> str:
    """Return what a committed file has to be."""
    if path.parent == STATIC:
        values = STATIC_VALUES[path.name]
        header = _STATIC_HEADER.format(values=json.dumps(values) if values else "its default values")
        # Only Helm runs hooks.
        return header + "---\n".join(text for text in _documents(templates(values)) if "helm.sh/hook:" not in text)
    return _GOLDEN_HEADER.format(name=path.name) + "---\n".join(
        _documents(templates(yaml_of(EXAMPLE_VALUES / path.name)))
    )


def _documents(texts: dict[str, str]) -> list[str]:
    manifests = [text for path, text in sorted(texts.items()) if path.endswith(".yaml")]
    stripped = [text.strip().removeprefix("---\n") for text in manifests]
    return [f"{text}\n" for text in stripped if text]


def main() -> int:
    """Write or compare, as the command line says."""
    if "--write" in sys.argv[1:]:
        for path in committed():
            path.parent.mkdir(exist_ok=True)
            path.write_text(fresh(path))
        return 0
    stale = [path for path in committed() if not path.exists() or path.read_text() != fresh(path)]
    for path in stale:
        print(f"{path} is stale; run `python -m tests.chart.rendering --write`", file=sys.stderr)  # noqa: T201 - a command
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
