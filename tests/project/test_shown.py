"""What pages show: each command runs or is named here with the reason, and each YAML is what its reader takes.

tests/project/test_newcomer.py runs the commands of README.md and of the pages on installing, in a fresh clone.
"""

import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import kubernetes_validate  # type: ignore[import-untyped] # ships no types
import pytest
import yaml

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.cli.main import commands as gpushare
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.gpus.host import Host
from gpushare_plugin.gpus.simulated import SimulatedSource
from gpushare_plugin.node.configuration import planned
from tests.chart import validity
from tests.chart.rendering import CHART, ROOT, STATIC, templates
from tests.monitoring.tools import promtool
from tests.project import test_newcomer
from tests.project.test_newcomer import blocks, commands_of, rendered, run

CHART_VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
EVERY = sorted(str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OTHERS = [page for page in [*EVERY, "charts/gpushare/README.md"] if page not in test_newcomer.DOCUMENTS]

NOT_RUN = {
    **test_newcomer.NOT_RUN,
    "for": "loads the machine for minutes",
    "gpushare check-config --strict": "checks a folder of the reader",
    "gpushare check-config new.yaml": "tests/process/test_cli.py runs it with files that it writes",
    "gpushare doctor": "looks at the machine that runs the tests",
    "gpushare explain --stranded": "reads the cluster of the reader",
    "gpushare explain POD": "reads the cluster of the reader",
    "gpushare list -o json": "looks at the machine that runs the tests",
    "gpushare simulate": "reads a trace of the reader",
    "gpushare web": "serves until it is ended",
    "helm template": "reads values of the reader",
    "make bench": "measures for minutes",
    "make bench-compare": "compares files of the reader",
    "make bench-packing": "reads a trace that is not ours to contain",
    "make gpu": "needs a GPU",
    "make gpu-bundle": "tests/real_gpus/test_bundle.py runs it",
    "nvidia-smi": "needs a GPU",
    "openssl": "tests/unit/extender/test_certificates.py runs these commands where they may write files",
    "source": "changes the shell of the reader; tests/process/test_completion.py runs the script",
    "gpushare completion fish": "needs fish",
}
"""Commands by their first words, each with the reason why it is not run here. Every other command is run."""

NO_SCHEMA = {
    "ClusterConfiguration": "an object of kubeadm",
    "KubeSchedulerConfiguration": "kube-scheduler's own kind, of which no package has a schema",
}
"""Kinds of objects that are not checked, each with the reason."""

PARTS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "resources": lambda part: pod({"containers": [{"name": "main", "image": "image", **part}]}),
    "selectors": lambda part: {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "class"},
        "spec": part,
    },
    "spec": lambda part: pod({"containers": [{"name": "main", "image": "image"}], **part["spec"]}),
}
"""Objects around the parts that pages show, by the first key of the part."""

NOT_CHECKED = {
    "    - --config=/etc/kubernetes": "lines from three places of a manifest of the reader",
    "resourceGroups:": "a part of a kind of Kueue",
}
"""YAML that is not checked, by its first words, each with the reason."""

OF_LARGE_GPUS = "more units than MPS serves clients"
"""A warning that a config of a page may have: smaller GPUs have fewer units."""


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with a specification."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}


def reason(command: str) -> str | None:
    """Return the reason why a command is not run, None where it is."""
    return next((why for words, why in NOT_RUN.items() if f"{command} ".startswith(f"{words} ")), None)


@pytest.mark.parametrize("page", OTHERS)
def test_each_command_of_a_page_runs_and_prints_what_is_shown(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A command after `$` prints what stands below it; options of gpushare exist, also where a command is not run."""
    if any(blocks(page, "sh", "console")):
        request.getfixturevalue("clone")
    for block in blocks(page, "sh", "console"):
        for command in written(block):
            assert_options_exist(command)
            if command.startswith(("helm install", "helm upgrade")):
                assert "daemonset.yaml" in rendered(command), command
            elif not reason(command):
                printed = run(re.sub(r" > [\w.-]+$", "", command), tmp_path)  # no file is written into the repository
                assert f"$ {command}" not in block or f"$ {command}\n{printed}" in block, (
                    f"{command} prints:\n{printed}"
                )


def written(block: str) -> list[str]:
    """Return the commands of a block: those after `$`, or else all lines."""
    shown = re.findall(r"^\$ (.+)$", block, re.MULTILINE)
    return shown or list(commands_of(block))


def assert_options_exist(command: str) -> None:
    """Raise where a command of gpushare, also within another one, has an option that the command does not know."""
    for called in re.findall(r"(?:^|[(|] *|-- |' )gpushare ([a-z-]+[^|<>)']*)", command):
        with click.Context(gpushare) as context:
            try:
                name, found, rest = gpushare.resolve_command(context, shlex.split(called))
                assert found is not None
                found.make_context(name, rest, context)
            except click.NoSuchOption:
                raise
            except (click.UsageError, click.exceptions.Exit, GpushareError):
                pass  # files of the reader are not there


def test_an_option_that_is_gone_is_found() -> None:
    """The check above can fail."""
    with pytest.raises(click.NoSuchOption):
        assert_options_exist("kubectl exec POD -- gpushare inspect --no-such-option")


def test_no_reason_is_left_over() -> None:
    """Each kind of command that is not run is on one of the pages."""
    every = [command for page in EVERY for block in blocks(page, "sh", "console") for command in written(block)]
    more = NOT_RUN.keys() - test_newcomer.NOT_RUN.keys()
    assert [words for words in more if not any(f"{command} ".startswith(f"{words} ") for command in every)] == []


@pytest.mark.parametrize("page", [*EVERY, "charts/gpushare/README.md"])
def test_yaml_of_a_page_is_what_its_reader_takes(page: str, tmp_path: Path) -> None:
    """Configs load, objects and values fit their schemas, and files of other kinds are read by their programs."""
    for text in blocks(page, "yaml"):
        if not text.startswith(tuple(NOT_CHECKED)):
            check(text, tmp_path, page)


def check(text: str, folder: Path, page: str) -> None:
    """Raise unless the reader of a YAML takes it; a config with mistakes is shown with what is said of them."""
    found = list(yaml.safe_load_all(text))
    first = next(iter(found[0]))
    if first == "version":
        check_config(text, folder, page)
    elif text.startswith("# kustomization.yaml"):
        check_kustomization(text, folder)
    elif first == "scrape_configs":
        # Debian's promtool does not know discovery in Kubernetes.
        text = re.sub(r"^  kubernetes_sd_configs:\n(  - .*\n)+", "", text, flags=re.MULTILINE)
        (folder / "prometheus.yaml").write_text(text)
        assert "SUCCESS" in promtool("check", "config", folder / "prometheus.yaml")
    elif first in ("driverVersion", "gpus"):
        (folder / "gpus.yaml").write_text(text)
        SimulatedSource(folder / "gpus.yaml").read()
    elif found[0].keys() <= CHART_VALUES.keys() and first != "resources":
        templates(found[0])
    else:
        for each in found:
            manifest = each if "kind" in each else PARTS[first](each)
            if manifest["kind"] not in NO_SCHEMA:
                validity.check(manifest, kubernetes_validate.latest_version())


def check_kustomization(text: str, folder: Path) -> None:
    """Raise unless kustomize builds a kustomization of static manifests; without `kubectl`, only its patches are read.

    Kustomize reads a patch that begins with `[` as JSON, and not as YAML.
    """
    written = yaml.safe_load(text)
    operations: list[dict[str, str]] = []
    for patch in (each["patch"] for each in written["patches"]):
        operations += json.loads(patch) if patch.startswith("[") else yaml.safe_load(patch)
    assert [each for each in operations if not {"op", "path", "value"} <= each.keys()] == []
    if shutil.which("kubectl"):
        (folder / "kustomization.yaml").write_text(text)
        for name in written["resources"]:
            shutil.copy(STATIC / name, folder)
        built = subprocess.run(["kubectl", "kustomize", folder], check=False, capture_output=True, text=True)  # noqa: S607 - from PATH
        assert built.returncode == 0, built.stderr
        assert [each for each in operations if f"{Path(each['path']).name}: {each['value']}" not in built.stdout] == []


def check_config(text: str, folder: Path, page: str) -> None:
    """Raise unless a config loads, or the page shows each mistake with the file and the line.

    On some node of `examples/gpus`, a config without mistakes must have no warning.
    """
    file = folder / "gpushare.yaml"
    file.write_text(text)
    loaded = load(file, [])
    said = [line.replace(str(file), file.name) for line in loaded.lines(loaded.problems)]
    shown = (ROOT / page).read_text()
    assert [line for line in said if line not in shown] == []
    if loaded.config is not None and loaded.effective is not None and not loaded.problems:
        nodes = [SimulatedSource(gpus).read() for gpus in sorted((ROOT / "examples/gpus").iterdir())]
        facts = [Host(limits_agent=True).preview(node, loaded.config) for node in nodes]
        plans = [planned(loaded, loaded.effective, node, facts=fact) for node, fact in zip(nodes, facts, strict=True)]
        warned = [[*loaded.notices, *plan.notices, *map(str, plan.problems)] for plan in plans]
        assert [] in [[line for line in lines if OF_LARGE_GPUS not in line] for lines in warned]


@pytest.mark.parametrize(
    "text",
    [
        "version: v1\nsharing: {memory: {resource: []}}\n",
        "kind: Pod\napiVersion: v1\nmetadata: {name: pod}\nspec: {container: []}\n",
        "resources: {limit: {aliyun.com/gpu-mem: 1}}\n",
        "scheduler: {enabled: 3}\n",
        "gpus: [{memory: much}]\n",
        "# kustomization.yaml\nresources: []\npatches: [{patch: '[{op: add, path: /spec, value: a}]'}]\n",
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, devices: [0], replicas: 2}]}}\n",
    ],
)
def test_a_mistake_in_yaml_is_found(text: str) -> None:
    """The check of YAML can fail, for each of its readers."""
    with tempfile.TemporaryDirectory() as folder, pytest.raises(Exception):  # noqa: B017, PT011 - of five readers
        check(text, Path(folder), "README.md")
