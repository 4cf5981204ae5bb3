"""Renders the chart with Helm's own engine, and keeps what is committed of its output what the chart makes.

That is the static manifest, and for each of the example values the golden output, which reviews see change.
`python -m tests.chart.rendering` exits 1 when any of it is stale; `--write` writes it.
"""

import sys
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "charts/gpushare"
STATIC_MANIFEST = ROOT / "charts/static/gpushare.yaml"
EXAMPLE_VALUES = ROOT / "examples/values"
GOLDEN = Path(__file__).parent / "golden"

_HEADER = """\
# gpushare on every node with GPUs, with the default values of charts/gpushare, which this file is made from.
# Put your image and, where NVIDIA's runtime is not the default one, `runtimeClassName: nvidia` into the pod's spec.
"""
_GOLDEN_HEADER = "# What the chart makes of examples/values/{name}; `make generate` writes this file.\n"


def templates(
    values: dict[str, Any] | None = None, release: str = "gpushare", *, upgrade: bool = False
) -> dict[str, str]:
    """Return the rendered text of each template of the chart; raises HelmError for values that are refused."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values or {}, name=release, namespace="kube-system", is_upgrade=upgrade)
    return {path.removeprefix("gpushare/templates/"): text for path, text in texts.items()}


def objects(values: dict[str, Any] | None = None, release: str = "gpushare") -> list[dict[str, Any]]:
    """Return the Kubernetes objects that the chart makes."""
    return [found for found in yaml.safe_load_all("---\n".join(_documents(values, release))) if found is not None]


def yaml_of(file: Path) -> dict[str, Any]:
    """Return the values in a file."""
    values: dict[str, Any] = yaml.safe_load(file.read_text())
    return values


def of_hooks(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects that Helm makes only when something happens to the release."""
    return [each for each in made if "helm.sh/hook" in each["metadata"].get("annotations", {})]


def committed() -> dict[Path, str]:
    """Return what each committed file that is made from the chart has to be."""
    by_kubectl = [text for text in _documents() if "helm.sh/hook:" not in text]
    files = {STATIC_MANIFEST: _HEADER + "---\n".join(by_kubectl)}
    for example in sorted(EXAMPLE_VALUES.iterdir()):
        documents = _documents(yaml_of(example))
        files[GOLDEN / example.name] = _GOLDEN_HEADER.format(name=example.name) + "---\n".join(documents)
    return files


def _documents(values: dict[str, Any] | None = None, release: str = "gpushare") -> list[str]:
    texts = sorted((path, text) for path, text in templates(values, release).items() if path.endswith(".yaml"))
    stripped = [text.strip().removeprefix("---\n") for _, text in texts]
    return [f"{text}\n" for text in stripped if text]


def main() -> int:
    """Write or compare, as the command line says."""
    if "--write" in sys.argv[1:]:
        for path, content in committed().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        return 0
    stale = [path for path, content in committed().items() if not path.exists() or path.read_text() != content]
    for path in stale:
        print(f"{path} is stale; run `python -m tests.chart.rendering --write`", file=sys.stderr)  # noqa: T201 - a command
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
