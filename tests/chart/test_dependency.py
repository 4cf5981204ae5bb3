"""The chart as a dependency: a chart of charts turns gpushare on or off, and has values for all its charts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import CHART, objects, parsed, render

DEPENDENCY = {"name": "gpushare", "version": "*", "condition": "gpushare.enabled"}


def platform(folder: Path, values: dict[str, Any], dependency: dict[str, str]) -> list[dict[str, Any]]:
    """Return what a chart that depends on gpushare makes; its values.yaml has other charts' values, too."""
    shutil.copytree(CHART, folder / "charts/gpushare")
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (folder / "Chart.yaml").write_text(json.dumps(chart))
    (folder / "values.yaml").write_text(json.dumps({"global": {"storageClass": "fast"}, "other": {"enabled": True}}))
    return parsed(render(folder, values, "platform"))


@pytest.mark.parametrize("values", [{}, {"gpushare": {"enabled": True}}, {"gpushare": {"enabled": None}}], ids=str)
def test_a_chart_of_charts_turns_gpushare_on(tmp_path: Path, values: dict[str, Any]) -> None:
    """The objects are those of the chart by itself, whether the value of the condition is given or not."""
    assert platform(tmp_path, values, DEPENDENCY) == objects({}, "platform")


def test_a_chart_of_charts_turns_gpushare_off(tmp_path: Path) -> None:
    """Nothing is made, and the value is no mistake there."""
    assert platform(tmp_path, {"gpushare": {"enabled": False}}, DEPENDENCY) == []


def test_another_name_of_the_dependency_is_in_the_names(tmp_path: Path) -> None:
    """With an alias, the values are below the alias, and objects are named by it."""
    dependency = {**DEPENDENCY, "alias": "gpus", "condition": "gpus.enabled"}
    made = platform(tmp_path, {"gpus": {"enabled": True, "hostNetwork": True}}, dependency)
    (daemons,) = (each for each in made if each["kind"] == "DaemonSet")
    assert daemons["metadata"]["name"] == "platform-gpus"
    assert daemons["spec"]["template"]["spec"]["hostNetwork"] is True


def test_secrets_for_all_charts_reach_every_pod(tmp_path: Path) -> None:
    """Charts write them as names or as in a pod; they come after those of the chart itself, each once."""
    own = [{"name": "mine"}]
    values = {
        "global": {"imagePullSecrets": ["everyones", {"name": "others"}, "mine"]},
        "gpushare": {
            "imagePullSecrets": own,
            "mps": {"enabled": True},
            "partitioning": {"enabled": True, "mig": {"enabled": True}},
            "scheduler": {"enabled": True, "kubeScheduler": {"enabled": True}},
        },
    }
    made = platform(tmp_path, values, DEPENDENCY)
    pods = [each["spec"].get("template", each)["spec"] for each in made if each["kind"] in _WITH_PODS]
    assert len(pods) == len(_PROGRAMS)
    for each in pods:
        assert each["imagePullSecrets"] == [*own, {"name": "everyones"}, {"name": "others"}]


_WITH_PODS = {"DaemonSet", "Deployment", "Job", "Pod"}
_PROGRAMS = ["daemon", "MPS", "MIG", "extender", "kube-scheduler", "partitioner", "clean-up", "test"]
