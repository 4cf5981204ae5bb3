"""Tests of what a newcomer types: the commands of README.md and the pages on installing, in order, in a fresh clone."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import helm_python
import pytest

from tests.chart.rendering import ROOT, merged, templates
from tests.process.daemon import without_library

PAGES = sorted((ROOT / "docs/install").iterdir())
DOCUMENTS = ["README.md", "docs/install.md", *(f"docs/install/{page.name}" for page in PAGES)]

NOT_RUN = {
    "docker": "needs Docker",
    "kind": "needs Docker",
    "kubectl": "needs a cluster; the files that it names must exist",
    "helm install": "needs a cluster; the chart is rendered with the same values",
    "helm upgrade": "needs a cluster; the chart is rendered with the same values",
    "helm push": "needs a registry",
    "helm test": "needs a release in a cluster",
    "helm uninstall": "needs a release in a cluster",
    "gpushare cleanup": "needs an API server",
    "sudo": "changes a node",
    "oc": "needs OpenShift",
    "gcloud": "needs GKE",
    "az": "needs AKS",
}
"""Commands by their first words, each with the reason why it is not run here. Every other command is run."""

PLACEHOLDERS = {"MY-VALUES.yaml": "examples/values/k3s.yaml"}
"""Files that readers have, and files of the repository that stand for them."""

_MERGED = {
    "--values": lambda file: helm_python.values_from_yaml(Path(file).read_text()),
    "--set": helm_python.parse_set_string,
    "--set-json": helm_python.parse_set_json,
    "--set-file": helm_python.parse_set_file,
}
"""Options of Helm that give values, and how each is read."""


def blocks(document: str, *languages: str) -> Iterator[str]:
    """Yield the text of each code block of a document in one of these languages, also of blocks within lists."""
    written = (ROOT / document).read_text()
    for indent, language, text in re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", written, re.DOTALL | re.MULTILINE):
        if language in languages:
            yield re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def commands(document: str) -> Iterator[str]:
    """Yield each command of a document, without comments; `a && b` are two."""
    for block in blocks(document, "sh", "console"):
        yield from commands_of(block)


def commands_of(block: str) -> Iterator[str]:
    """Yield each command of a code block."""
    for line in block.replace("\\\n", " ").splitlines():
        for command in re.sub(r"(^|\s+)#\s.*", "", line).split(" && "):
            if command:
                yield " ".join(PLACEHOLDERS.get(word, word) for word in command.split())


def why_not_run(command: str) -> str | None:
    """Return the reason why a command is not run, None where it is."""
    reasons = (reason for words, reason in NOT_RUN.items() if f"{command} ".startswith(f"{words} "))
    return next(reasons, None)


def without_image_tools(folder: Path) -> Path:
    """Return a folder with the programs that build images, none of which works: `make release` skips the image."""
    for name in ("docker", "podman", "buildah"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    return folder


def run(command: str, folder: Path) -> str:
    """Run a command as a newcomer's shell does, on a machine without GPUs and image tools; return what it printed."""
    environment = {
        **os.environ,
        **without_library(folder),
        "PATH": f"{without_image_tools(folder)}:{sys.prefix}/bin:{os.environ['PATH']}",
        "MAKEFLAGS": "",  # not those of a `make` that runs the tests
    }
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=environment, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def rendered(command: str) -> dict[str, str]:
    """Return what the chart makes of the values that a Helm command names; raises HelmError for wrong ones."""
    values: dict[str, Any] = {}
    for option, value in pairwise(shlex.split(command)):
        if read := _MERGED.get(option):
            values = merged(values, read(value))
    return templates(values)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_in_the_documents_works(document: str, clone: Path, tmp_path: Path) -> None:
    """Each command is run, or is of a kind that is named above with the reason; files that it names are there."""
    for command in commands(document):
        if command.startswith(("helm install", "helm upgrade")):
            assert "daemonset.yaml" in rendered(command), command
        elif why_not_run(command):
            named = re.findall(r"(?:-f|--filename) (\S+)", command)
            assert [name for name in named if not (clone / name).is_file()] == [], command
        else:
            run(command, tmp_path)


@pytest.mark.usefixtures("clone")
def test_a_newcomer_reaches_the_list_of_gpus(tmp_path: Path) -> None:
    """README alone leads to `gpushare list` on a simulated node, by commands that need neither GPU nor cluster."""
    first = [command for command in commands("README.md") if not why_not_run(command)][:2]
    assert [shlex.split(command)[:2] for command in first] == [["make", "demo"], [".venv/bin/gpushare", "list"]]
    listed = run(first[1], tmp_path)
    assert all(f"\n{index}  " in listed for index in range(4)), listed


def test_no_reason_is_left_over() -> None:
    """Each kind of command that is not run is in one of the documents."""
    every = [command for document in DOCUMENTS for command in commands(document)]
    unused = [words for words in NOT_RUN if not any(f"{command} ".startswith(f"{words} ") for command in every)]
    assert unused == []


def test_make_says_what_it_installs() -> None:
    """The first `make demo` takes a while: it says so before, and pip says what it does."""
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"],  # noqa: S607 - from PATH
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": ""},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    said = [line for line in plan if line.startswith("echo ")]
    assert any(".venv" in line for line in said)
    installs = [line for line in plan if "pip install" in line]
    assert installs
    assert plan.index(said[-1]) < plan.index(installs[0])
    assert "--quiet" not in installs[0]


@pytest.mark.parametrize("status", [0, 1])
def test_make_shows_the_packages_and_no_more(tmp_path: Path, status: int) -> None:
    """Of what pip says, the names of the packages are shown on one line, as they come, and errors; a failure is one."""
    for name in (".venv/bin/pip", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    said = [
        "Looking in indexes",
        "Collecting aiohttp>=3.11 (from gpushare)",
        "  Downloading aiohttp.whl (1.7 MB)",
        "Collecting click[x]==8.5.1",
        "  Installing build dependencies: started",
        "Installing collected packages: a",
    ]
    pip = tmp_path / "pip"
    pip.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in said), "echo oh >&2", f"exit {status}"]))
    pip.chmod(0o755)
    done = subprocess.run(
        ["make", "--no-print-directory", "-f", str(ROOT / "Makefile"), f"PIP={pip}", ".venv/.installed"],  # noqa: S607 - from PATH
        cwd=tmp_path,
        env={**os.environ, "MAKEFLAGS": ""},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode != 0, (tmp_path / ".venv/.installed").exists()) == (status != 0, status == 0)
    assert done.stdout.splitlines()[1:3] == ["aiohttp click ", "Installing them …"]
    assert "oh" in done.stderr
