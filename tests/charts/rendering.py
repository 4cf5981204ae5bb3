"""Renders the chart with Helm's own engine, and keeps the static manifest what the chart makes by default.

`python -m tests.charts.rendering` exits 1 when the static manifest is stale; `--write` writes it.
"""

import sys
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "charts/gpushare"
STATIC_MANIFEST = ROOT / "charts/static/gpushare.yaml"

_HEADER = """\
# gpushare on every node, with the default values of charts/gpushare, which this file is made from.
# Put your image and, where NVIDIA's runtime is not the default one, `runtimeClassName: nvidia` into the pod's spec.
"""


def templates(values: dict[str, Any] | None = None, release: str = "gpushare") -> dict[str, str]:
    """Return the rendered text of each template of the chart; raises HelmError for values the schema refuses."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values or {}, name=release, namespace="kube-system")
    return {path.removeprefix("gpushare/templates/"): text for path, text in texts.items()}


def objects(values: dict[str, Any] | None = None, release: str = "gpushare") -> list[dict[str, Any]]:
    """Return the Kubernetes objects that the chart makes."""
    documents = [text for path, text in sorted(templates(values, release).items()) if path.endswith(".yaml")]
    return [found for text in documents for found in yaml.safe_load_all(text) if found is not None]


def of_hooks(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects that Helm makes only when something happens to the release."""
    return [each for each in made if "helm.sh/hook" in each["metadata"].get("annotations", {})]


def static_manifest() -> str:
    """Return what the static manifest has to be: without hooks, which only Helm knows."""
    texts = sorted(
        (path, text.strip().removeprefix("---\n"))
        for path, text in templates().items()
        if path.endswith(".yaml") and "helm.sh/hook:" not in text
    )
    return _HEADER + "---\n".join(f"{text}\n" for _, text in texts if text)


def main() -> int:
    """Write or compare, as the command line says."""
    if "--write" in sys.argv[1:]:
        STATIC_MANIFEST.parent.mkdir(exist_ok=True)
        STATIC_MANIFEST.write_text(static_manifest())
        return 0
    if STATIC_MANIFEST.read_text() == static_manifest():
        return 0
    print(f"{STATIC_MANIFEST} is stale; run `python -m tests.charts.rendering --write`", file=sys.stderr)  # noqa: T201 - a command
    return 1


if __name__ == "__main__":
    sys.exit(main())
