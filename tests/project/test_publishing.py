"""The workflow that tests and publishes: least rights, pinned actions, README's commands, what its owner chose."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare_plugin import __version__
from tests.chart.hashes import PYTHONS
from tests.project.test_newcomer import commands

ROOT = Path(__file__).parents[2]
FILE = ROOT / ".github/workflows/gpushare.yaml"
TEXT = FILE.read_text()
WORKFLOW: dict[str, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
RELEASING = (ROOT / "docs/releasing.md").read_text()

READS, SIGNS = {"contents": "read"}, {"id-token": "write", "attestations": "write"}
RIGHTS = {
    "plan": READS,
    "test": READS,
    "kind": READS,
    "package": READS,
    "publish-image-and-chart": {**READS, **SIGNS},
    "publish-wheel": {"id-token": "write"},
    "publish-files": {"contents": "write", **SIGNS},
    "publish-site": {"contents": "write"},
}
"""What the token of each job can do."""

ASKED = {
    "publish-image-and-chart": "registry",
    "publish-wheel": "wheel",
    "publish-files": "files",
    "publish-site": "files",
}
"""The jobs that publish, and what each of them asks the plan for."""

OWNERS = {"REGISTRY": "registry.example.com/team", "REGISTRY_USER": "me", "REGISTRY_PASSWORD": "set"}
PINNED = "python:3.13-slim@sha256:" + "0" * 64
TAG = {"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": f"v{__version__}"}


def steps(job: str) -> str:
    """Return the commands of a job, one a line."""
    return "\n".join(step.get("run", "") for step in JOBS[job]["steps"])


def test_jobs_have_the_rights_they_need_and_an_end() -> None:
    """No job inherits rights; only those that publish can write, and none runs without a limit of time."""
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in JOBS.items()} == RIGHTS
    assert [name for name, job in JOBS.items() if not 0 < job.get("timeout-minutes", 0) <= 90] == []


def test_actions_are_pinned_by_commit() -> None:
    """A tag of an action can be moved; each is named by its commit, with the version beside it, the same everywhere."""
    used = re.findall(r"uses: (\S+)@(\S+)(?: # (v[\d.]+))?$", TEXT, re.MULTILINE)
    assert len(used) == len(re.findall(r"\buses:", TEXT))
    assert [each for each in used if not (re.fullmatch(r"[0-9a-f]{40}", each[1]) and each[2])] == []
    assert len({each[0] for each in used}) == len(set(used))


def test_tokens_do_not_stay_on_the_disk() -> None:
    """After a checkout no later step finds the credentials of the job in the clone."""
    cloned = [step for job in JOBS.values() for step in job["steps"] if "checkout" in step.get("uses", "")]
    assert [step for step in cloned if step["with"].get("persist-credentials") is not False] == []


def test_no_text_of_others_becomes_a_command() -> None:
    """Commands take what comes from outside, such as the name of a tag, from variables alone."""
    assert [name for name in JOBS if "${{" in steps(name)] == []


def test_what_the_owner_sets_is_documented() -> None:
    """The page has each variable and each secret that the workflow reads, and no other."""
    used = {(kind, name) for kind, name in re.findall(r"\b(vars|secrets)\.(\w+)", TEXT)}
    rows = re.findall(r"^\| `(\w+)` \| (variable|secret)\b", RELEASING, re.MULTILINE)
    assert used == {({"variable": "vars", "secret": "secrets"}[kind], name) for name, kind in rows}


def test_tests_run_on_every_python() -> None:
    """All checks of the project run on each Python that has wheels, with the commits that tests of upgrades need."""
    assert tuple(JOBS["test"]["strategy"]["matrix"]["python"]) == tuple(PYTHONS)
    assert steps("test").splitlines()[-1] == ".ci/run"
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert JOBS["test"]["steps"][0]["with"]["fetch-depth"] == 0


def test_the_commands_of_readme_run_on_kind() -> None:
    """What README says about kind is what the workflow types, word by word and in that order."""
    readme = list(commands("README.md"))
    begin = readme.index("kind create cluster")
    end = next(place for place, command in enumerate(readme) if command.startswith("kubectl exec"))
    typed = [each.strip() for line in steps("kind").splitlines() for each in line.split(" && ")]
    assert [command for command in typed if command in readme[begin : end + 1]] == readme[begin : end + 1]
    assert end - begin == 7


def test_nothing_is_published_that_was_not_tested() -> None:
    """Each job that publishes waits for all tests and asks the plan; the others publish nothing."""
    for name, asked in ASKED.items():
        assert set(JOBS[name]["needs"]) == {"plan", "test", "kind", "package"}
        assert JOBS[name]["if"] == f"needs.plan.outputs.{asked} == 'true'"
    assert set(ASKED) == {name for name, rights in RIGHTS.items() if "write" in rights.values()}
    assert set(JOBS["plan"]["outputs"]) == {"base", *ASKED.values()}


def test_what_is_published_has_the_resolved_base() -> None:
    """The digest that the plan found is what the image is built from, wherever it is built to be published."""
    for name in ("package", "publish-image-and-chart"):
        assert JOBS[name]["env"]["BASE"] == "${{ needs.plan.outputs.base }}"
        builds = re.findall(r"docker buildx build .*(?:\\\n.*)*", steps(name))
        assert len(builds) == 1
        assert '--build-arg BASE="$BASE"' in builds[0]
        assert "--platform linux/amd64,linux/arm64" in builds[0]
        assert "--sbom=true" in builds[0]
    assert 'make release BASE="$BASE"' in steps("package")


DOCKER = """\
#!/bin/bash
# Stands in for docker: knows a digest, and exports both architectures with their bills of materials.
case "$*" in
*imagetools*) echo "sha256:$(printf '%064d' 7)" ;;
*type=tar*)
  for architecture in amd64 arm64; do
    mkdir -p linux_$architecture/opt/sboms && echo of-a-package >linux_$architecture/opt/sboms/sbom.spdx.json
    echo of-$architecture >linux_$architecture/sbom.spdx.json
  done
  tar --create --file image.tar --remove-files linux_amd64 linux_arm64 ;;
esac
"""


def typed(job: str, step: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the commands of a step as the workflow's shell does, in a folder, with the stand-in for docker."""
    (commands,) = (each["run"] for each in JOBS[job]["steps"] if each.get("name", "").startswith(step))
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(folder / "output"), **variables}
    shell = ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", commands]
    return subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_base_is_that_of_the_dockerfile(tmp_path: Path) -> None:
    """The plan hands on the Dockerfile's tag with the digest that the registry gives, in the form that it demands."""
    (tmp_path / "Dockerfile").write_text((ROOT / "Dockerfile").read_text())
    done = typed("plan", "Resolve the digest", tmp_path)
    assert done.returncode == 0, done.stderr
    base = (tmp_path / "output").read_text().removeprefix("base=").strip()
    (tag,) = re.findall(r"^ARG BASE=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base == f"{tag}@sha256:{7:064}"
    assert planned(BASE=base).returncode == 0


def test_each_architecture_has_its_bill_of_materials(tmp_path: Path) -> None:
    """What BuildKit exports is a part of the release, with checksums; bills of packages inside the image are not."""
    folder = tmp_path / "dist/gpushare"
    folder.mkdir(parents=True)
    done = typed("package", "Build the image for both", tmp_path, BASE=PINNED)
    assert done.returncode == 0, done.stderr
    said = {file.name: file.read_text() for file in folder.glob("*.spdx.json")}
    assert said == {f"gpushare-image-{each}.spdx.json": f"of-{each}\n" for each in ("amd64", "arm64")}
    assert [line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()] == sorted(said)


NAMED = re.compile(
    r"(?:gpushare[: -]|(?:t|newT)ag: |targetRevision: |--version |ARG VERSION=|(?:git tag|push origin|such as) v)"
    r"(\d+\.\d+\.\d+)\b(?!-)"
)
"""The version of gpushare in a page, an example or a file of the repository's host."""


def with_versions() -> dict[str, str]:
    """Return the text of each file that names versions of gpushare and is replaced by hand for a release."""
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.yaml"), *(ROOT / ".github").rglob("*.yaml")]
    return {str(file.relative_to(ROOT)): file.read_text() for file in [ROOT / "README.md", ROOT / "Dockerfile", *files]}


def test_the_written_commands_have_this_version() -> None:
    """Pages, examples and the workflow name image and chart by the version that is built, or nobody finds them."""
    found = {(version, file) for file, text in with_versions().items() for version in NAMED.findall(text)}
    assert {each for each in found if each[0] != __version__} == set()


def test_no_version_escapes() -> None:
    """Where a file has this version, `NAMED` finds the version, so that the next release leaves no old version."""
    written = re.compile(rf"(?<![\d.]){re.escape(__version__)}\b(?!-)")
    missed = [
        f"{file}: {line}"
        for file, text in with_versions().items()
        for line in text.splitlines()
        if len(written.findall(line)) != len(NAMED.findall(line))
    ]
    assert missed == [], "extend NAMED by the words before the version"


def planned(root: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Ask what is published, with these variables."""
    command = [sys.executable, "-m", "generators.publishing"]
    environment = {"PATH": os.environ["PATH"], "BASE": PINNED, **variables}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def licensed(tmp_path: Path) -> Path:
    """Make a copy of what the plan reads, with a licence."""
    names = ["generators/__init__.py", "generators/publishing.py", "gpushare_plugin/__init__.py", "Dockerfile"]
    names += ["gpushare_plugin/base/__init__.py", "gpushare_plugin/base/version.py", "charts/gpushare/Chart.yaml"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "LICENSE").write_text("…")
    return tmp_path


def test_only_a_tag_is_published(licensed: Path) -> None:
    """A change that is pushed or proposed publishes nothing, whatever is set."""
    done = planned(licensed, GITHUB_REF_TYPE="branch", GITHUB_REF_NAME="main", PUBLISH_WHEEL="true", **OWNERS)
    assert done.stdout == "files=false\nregistry=false\nwheel=false\n"
    assert "registry: skipped, because only a tag is published" in done.stderr


def test_without_a_licence_nothing_is_published(licensed: Path) -> None:
    """What nobody may use is not published; the sentence names the page that says what is missing."""
    (licensed / "LICENSE").unlink()
    done = planned(licensed, PUBLISH_WHEEL="true", **TAG, **OWNERS)
    assert done.stdout == "files=false\nregistry=false\nwheel=false\n"
    assert "files: skipped, because there is no file LICENSE: docs/releasing.md says" in done.stderr


def test_what_is_not_set_is_skipped_with_words(licensed: Path) -> None:
    """The files of a release need nothing of the owner but a licence; the rest says which variables are missing."""
    done = planned(licensed, REGISTRY="registry.example.com/team", **TAG)
    assert done.stdout == "files=true\nregistry=false\nwheel=false\n"
    assert "registry: skipped, because REGISTRY_USER, REGISTRY_PASSWORD are not set" in done.stderr
    assert "wheel: skipped, because PUBLISH_WHEEL is '', and not 'true'" in done.stderr


def test_all_is_published_where_all_is_set(licensed: Path) -> None:
    """With all variables, a tag of this version publishes everything."""
    done = planned(licensed, PUBLISH_WHEEL="true", **TAG, **OWNERS)
    assert (done.returncode, done.stdout) == (0, "files=true\nregistry=true\nwheel=true\n")


def test_a_tag_of_another_version_is_refused(licensed: Path) -> None:
    """The tag is the version of what is published."""
    done = planned(licensed, GITHUB_REF_TYPE="tag", GITHUB_REF_NAME="v9.9.9")
    assert done.returncode != 0
    assert done.stderr.startswith(f"the tag is v9.9.9, and v{__version__} was expected")


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("charts/gpushare/Chart.yaml", "version: ", "version in Chart.yaml is 9.9.9"),
        ("charts/gpushare/Chart.yaml", "appVersion: ", "appVersion in Chart.yaml is 9.9.9"),
        ("Dockerfile", "ARG VERSION=", "ARG VERSION in Dockerfile is 9.9.9"),
    ],
)
def test_versions_agree(licensed: Path, file: str, line: str, said: str) -> None:
    """Chart, image and program have one version, and a difference is named."""
    text = (licensed / file).read_text()
    (licensed / file).write_text(text.replace(f"\n{line}{__version__}\n", f"\n{line}9.9.9\n"))
    done = planned(licensed)
    assert done.returncode != 0
    assert done.stderr == f"gpushare has the version {__version__}, but {said}: make them equal\n"


@pytest.mark.parametrize("base", ["", "python:3.13-slim", "python:3.13-slim@", "python:3.13-slim@sha256:12"])
def test_a_base_without_a_digest_is_refused(base: str) -> None:
    """Where the registry gives no digest, nothing is built."""
    done = planned(BASE=base)
    assert done.returncode != 0
    assert done.stderr.startswith(f"BASE is {base!r}, and NAME:TAG@sha256:… was expected")


def test_licences_agree() -> None:
    """The file, the wheel, the chart and the image have a licence together, and the same one; or none of them has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((ROOT / "charts/gpushare/Chart.yaml").read_text())
    label = re.findall(r'org\.opencontainers\.image\.licenses="([^"]+)"', (ROOT / "Dockerfile").read_text())
    named = {project.get("license"), chart.get("annotations", {}).get("artifacthub.io/license"), *(label or [None])}
    assert len(named) == 1
    assert (named != {None}) == (ROOT / "LICENSE").exists()
