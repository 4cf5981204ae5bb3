"""The pages on clusters of each kind, and that on versions: complete, reachable, and of one mind with the chart."""

import re
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped] # ships no types
import pytest
import yaml
from kubernetes_validate.utils import all_versions  # type: ignore[import-untyped] # ships no types

from tests.chart.hashes import PYTHONS
from tests.unit.kubelet import test_versions

ROOT = Path(__file__).parents[2]
INSTALL = (ROOT / "docs/install.md").read_text()
VERSIONS = ROOT / "docs/install/versions.md"
CLUSTERS = [page for page in (ROOT / "docs/install").iterdir() if page != VERSIONS]
MANAGED = ["eks.md", "gke.md", "aks.md", "openshift.md"]


def row(name: str) -> str:
    """Return the row of the table of versions that is about a program."""
    (found,) = re.findall(rf"^\| {name} \|.*$", VERSIONS.read_text(), re.MULTILINE)
    return str(found)


def minor(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(version.split(".")[:2])


@pytest.mark.parametrize("page", CLUSTERS, ids=lambda page: page.name)
def test_a_page_answers_the_same_questions(page: Path) -> None:
    """What is there, what to turn off, how to install, what does not work, and whether it was tried; with sources."""
    text = page.read_text()
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections == ["What is there", "Turn off", "Install", "What is known not to work"]
    head = text.partition("\n## ")[0]
    assert "Not tried" in head, "say in the head of the page whether this was tried"
    assert len(set(re.findall(r"\]\((https://[^)\s]+)\)", text))) >= 3, "facts about others need their source"


@pytest.mark.parametrize("page", [*CLUSTERS, VERSIONS], ids=lambda page: page.name)
def test_every_page_is_reachable(page: Path) -> None:
    """Docs/install.md leads to each page."""
    assert f"](install/{page.name})" in INSTALL


@pytest.mark.parametrize("name", MANAGED)
def test_a_managed_control_plane_is_told_first(name: str) -> None:
    """The first sentence says that pods need `schedulerName`: kube-scheduler there takes no configuration."""
    paragraph = (ROOT / "docs/install" / name).read_text().split("\n\n")[1]
    first = paragraph.replace("\n", " ").partition(". ")[0]
    assert "kube-scheduler" in first
    assert "schedulerName" in first


def test_the_range_of_kubernetes_is_one() -> None:
    """Chart.yaml, the pages, the schemas of the tests and the kubelets whose records are read agree."""
    chart = yaml.safe_load((ROOT / "charts/gpushare/Chart.yaml").read_text())
    oldest = minor(chart["kubeVersion"].removeprefix(">="))
    newest = minor(kubernetes_validate.latest_version())
    assert minor(all_versions()[0]) == oldest
    assert f"Kubernetes {oldest} or newer" in INSTALL
    assert f"| {oldest} to {newest} | older than {oldest}: Helm refuses the chart |" in row("Kubernetes")
    assert f"kubelets of {oldest} to {newest} are read" in row("Kubernetes")
    assert f"the schemas of {oldest} and {newest}" in row("Kubernetes")
    assert f"kubelets from {oldest} to {newest} record" in (test_versions.__doc__ or "")


def test_the_range_of_python_is_one() -> None:
    """The pages name the Pythons that have wheels."""
    assert f"| {PYTHONS[0]} to {PYTHONS[-1]} | older than {PYTHONS[0]}" in row("Python")
