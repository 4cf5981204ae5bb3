"""A release of an older chart is upgraded to this one, with its values used again, and rolled back."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest

from tests.chart.rendering import CHART, of_hooks, parsed, render, yaml_of
from tests.chart.test_chart import KUBERNETES
from tests.chart.validity import check
from tests.upgrade.builds import HistoryMissingError, extract

BEFORE = "a08f09736b10fb9f2c6b88e18f33d62ad719ff9f"
"""The commit of the older chart, which had none of the values that are newer."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with chart and examples of that commit; without it, the test is skipped."""
    folder = tmp_path_factory.mktemp("before")
    try:
        for path in ("charts/gpushare", "examples/values"):
            extract(BEFORE, path, folder)
    except HistoryMissingError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="module")
def before(history: Path) -> Path:
    """Return the older chart."""
    return history / "charts/gpushare"


@pytest.fixture(scope="module")
def reused(history: Path) -> Path:
    """Return this chart with the older one's defaults instead of its own, as `helm upgrade --reuse-values` has it."""
    chart = history / "reused/gpushare"
    shutil.copytree(CHART, chart)
    shutil.copy(history / "charts/gpushare/values.yaml", chart / "values.yaml")
    return chart


def releases(history: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the values of releases of the older chart: none, each example, and one with every part."""
    yield "no values", {}
    for file in sorted((history / "examples/values").iterdir()):
        yield file.name, yaml_of(file)
    yield (
        "every part",
        {
            "mps": {"enabled": True},
            "partitioning": {"enabled": True, "mig": {"enabled": True}},
            "scheduler": {"enabled": True, "kubeScheduler": {"enabled": True}},
            "networkPolicy": {"enabled": True},
            "cluster": {"admissionPolicy": True},
            "service": {"enabled": True},
            "podMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboard": {"enabled": True},
        },
    )


def by_name(made: list[dict[str, Any]]) -> dict[tuple[str, ...], Any]:
    """Return objects by kind, namespace and name, without hooks, which Helm makes anew."""
    hooks = of_hooks(made)
    return {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in made
        if each not in hooks
    }


def fixed(made: Any) -> dict[str, Any]:
    """Return the fields of an object that the API server lets nobody change."""
    spec = made.get("spec", {})
    return {
        "roleRef": made.get("roleRef"),
        "selector": spec.get("selector") if made["kind"] in {"DaemonSet", "Deployment"} else None,
        "clusterIP": spec.get("clusterIP") if made["kind"] == "Service" else None,
        "handler": made.get("handler"),
    }


def test_values_of_the_older_chart_can_be_used_again(history: Path, reused: Path) -> None:
    """With all newer values absent, every template and the notes are rendered, and API servers take the objects."""
    for name, values in releases(history):
        texts = render(reused, values, upgrade=True)
        assert texts["NOTES.txt"], name
        for each in parsed(texts):
            check(each, KUBERNETES[-1])


def test_an_upgrade_and_a_rollback_change_only_what_can_be_changed(history: Path, before: Path) -> None:
    """The objects of the older chart are all there, and their selectors, roles and addresses are the same."""
    for name, values in releases(history):
        old, new = (by_name(parsed(render(chart, values, upgrade=True))) for chart in (before, CHART))
        assert old.keys() <= new.keys(), name
        assert {key: fixed(each) for key, each in old.items()} == {key: fixed(new[key]) for key in old}, name


def test_a_section_that_the_older_chart_did_not_have_is_not_required(reused: Path) -> None:
    """Whoever uses old values again can set newer ones beside them."""
    values = {"cleanup": {"podLabels": {"team": "gpu"}}, "mps": {"podAnnotations": {"a": "b"}, "enabled": True}}
    assert parsed(render(reused, values))
    with helm_python.Chart.load(reused) as chart:
        assert "cleanup" not in chart.values
