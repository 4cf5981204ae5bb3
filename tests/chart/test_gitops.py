"""GitOps: the same values become the same text, and the examples for Argo CD and Flux are taken by the chart."""

import re
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, ROOT, objects, of_hooks, render
from tests.chart.test_chart import EVERYTHING, KUBERNETES, MATRIX
from tests.chart.validity import check

EXAMPLES = ROOT / "examples/gitops"
PAGE = (ROOT / "docs/gitops.md").read_text()

CHANGING = (
    "ago|bcrypt|date|dateModify|derivePassword|encryptAES|env|expandenv|gen[A-Z][A-Za-z]+|getHostByName|htmlDate|"
    "htpasswd|lookup|now|rand[A-Z][A-Za-z]+|randBytes|randInt|shuffle|unixEpoch|uuidv4"
)
"""Functions of Helm's templates whose result is another one each time, or on another machine."""

OF_THE_CLUSTER = {
    "ClusterRole",
    "ClusterRoleBinding",
    "DeviceClass",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "RuntimeClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
"""Kinds of objects that are in no namespace, of those that the chart can make."""


def example(name: str, kind: str) -> dict[str, Any]:
    """Return the object of a kind in an example."""
    (found,) = (each for each in yaml.safe_load_all((EXAMPLES / name).read_text()) if each["kind"] == kind)
    made: dict[str, Any] = found
    return made


def argo() -> dict[str, Any]:
    """Return the Application of Argo CD."""
    return example("argo-cd.yaml", "Application")


def flux() -> dict[str, Any]:
    """Return the HelmRelease of Flux."""
    return example("flux.yaml", "HelmRelease")


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_the_same_values_become_the_same_text(values: dict[str, Any]) -> None:
    """Byte for byte, for an installation and for an upgrade, which Argo CD cannot tell apart; but for the notes."""
    first, *others = (
        {path: text for path, text in render(CHART, values, upgrade=upgrade).items() if path != "NOTES.txt"}
        for upgrade in (False, False, True)
    )
    assert all(each == first for each in others)


def test_no_template_asks_for_what_changes() -> None:
    """No time, no chance, no look at a cluster, which `helm template` does not have; nor whether it is an upgrade."""
    for template in (CHART / "templates").rglob("*.*"):
        without_comments = re.sub(r"\{\{-? ?/\*.*?\*/", "", template.read_text(), flags=re.DOTALL)
        actions = "\n".join(re.findall(r"\{\{.*?\}\}", without_comments, re.DOTALL))
        without_text = re.sub(r'"[^"\n]*"', "", actions)
        assert not re.search(rf"(?<![.\w$-])({CHANGING})(?![\w-])", without_text), template.name
        if template.name != "NOTES.txt":
            assert not re.search(r"Release\.(IsInstall|IsUpgrade|Revision)", actions), template.name


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_nothing_is_rendered_that_an_api_server_drops(values: dict[str, Any]) -> None:
    """A field that is null, or a list that is empty, would be missing in the cluster, and be shown as a difference."""

    def dropped(place: str, value: Any) -> list[str]:
        if value is None or value == []:
            return [place]
        below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [found for key, each in below for found in dropped(f"{place}.{key}", each)]

    for made in objects(values):
        assert dropped(made["kind"], made) == []


@pytest.mark.parametrize("release", [argo, flux])
def test_the_values_of_an_example_are_taken(release: Any) -> None:
    """The chart makes valid objects of them, in the namespace that the example names."""
    spec = release()["spec"]
    values = spec["values"] if "values" in spec else spec["source"]["helm"]["valuesObject"]
    made = objects(values)
    for each in made:
        check(each, KUBERNETES[-1])
        assert each["metadata"].get("namespace", "kube-system") == "kube-system"
    assert "kube-system" in {spec.get("destination", {}).get("namespace"), release()["metadata"]["namespace"]}


def test_the_examples_name_the_chart_and_its_version() -> None:
    """A release of the chart is what both of them pull."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    source = argo()["spec"]["source"]
    assert (source["chart"], source["targetRevision"]) == (chart["name"], chart["version"])
    repository = example("flux.yaml", "OCIRepository")
    assert repository["spec"]["url"].rpartition("/")[2] == chart["name"]
    assert repository["spec"]["ref"] == {"tag": chart["version"]}
    assert flux()["spec"]["chartRef"] == {"kind": "OCIRepository", "name": repository["metadata"]["name"]}


def test_the_clean_up_runs_when_an_application_is_deleted() -> None:
    """Argo CD knows post-delete, needs the finalizer for it, and makes all objects of hooks at once, in any order."""
    assert argo()["metadata"]["finalizers"] == ["resources-finalizer.argocd.argoproj.io"]
    known_to_argo = {"post-delete"}
    ignored_by_argo = {"test"}
    hooks = of_hooks(objects(EVERYTHING))
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in hooks} == known_to_argo | ignored_by_argo
    (job,) = (each for each in hooks if each["kind"] == "Job")
    assert job["spec"]["backoffLimit"] > 0
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert not any("argocd.argoproj.io/hook" in each["metadata"]["annotations"] for each in hooks)


def test_flux_does_not_wait_for_what_never_comes() -> None:
    """The pods of MPS are not replaced by an upgrade, so nobody can wait for all of them to be new."""
    assert flux()["spec"]["values"]["mps"]["enabled"]
    assert flux()["spec"]["upgrade"] == {"disableWait": True}


def test_the_page_lists_every_kind_that_a_project_has_to_permit() -> None:
    """The cluster-wide kinds are those that the chart can make; the namespaces are those that it names."""
    made = objects(
        {**EVERYTHING, "namespaceOverride": "gpus", "cluster": {**EVERYTHING["cluster"], "admissionPolicy": True}}
    )
    assert {each["kind"] for each in made if each["kind"] in OF_THE_CLUSTER} == OF_THE_CLUSTER
    namespaced = [each for each in made if each["kind"] not in OF_THE_CLUSTER | {"Secret"}]
    monitors = EVERYTHING["podMonitor"]["namespace"]
    assert {each["metadata"]["namespace"] for each in namespaced} == {"gpus", "kube-system", monitors}
    (row,) = re.findall(r"^\| Cluster-wide kinds \| (.*) \|$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == OF_THE_CLUSTER
