"""Tests of `make release`, as far as it goes without a daemon that builds images: a stand-in for podman is told to."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import helm_python
import pytest
import yaml

from generators import release
from gpushare_plugin import __version__
from tests.chart.hashes import normal
from tests.chart.rendering import CHART, ROOT

WHEEL, PACKAGE = f"gpushare-{__version__}-py3-none-any.whl", f"gpushare-{__version__}.tgz"
KREW = (f"kubectl-gpushare-{__version__}.tar.gz", "krew-gpushare.yaml")
SBOM, IMAGE = f"gpushare-{__version__}.cdx.json", f"gpushare-image-{__version__}.tar"

PODMAN = """\
#!/bin/sh
# Stands in for podman: writes down how it was called, and saves something.
echo "$@" >> "$0.calls"
if [ "$1" = save ]; then echo image > "$3"; fi
"""


def run(folder: Path, tools: Path, *options: str) -> str:
    """Make a release with the tools in a folder only; return what is printed."""
    environment = {**os.environ, "PATH": str(tools), "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "generators.release", str(folder), *options]
    return subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Make a release on a machine that builds no images; return its folder, and what is printed."""
    place = tmp_path_factory.mktemp("plain")
    (place / "tools").mkdir()
    (place / "release").mkdir()
    (place / "release" / IMAGE).write_text("of an earlier run")
    return place / "release", run(place / "release", place / "tools")


@pytest.fixture(scope="module")
def with_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the same release with the stand-in for podman, from a base image by its digest; return the place."""
    place = tmp_path_factory.mktemp("image")
    podman = place / "tools/podman"
    podman.parent.mkdir()
    podman.write_text(PODMAN)
    podman.chmod(0o755)
    (podman.parent / "sh").symlink_to("/bin/sh")
    run(place / "release", podman.parent, "--base", "python@sha256:1")
    return place


def test_an_image_that_cannot_be_built_is_said_to_be_skipped(plain: tuple[Path, str]) -> None:
    """Everything else is there, and nothing of an earlier run passes for the image."""
    folder, printed = plain
    assert "image: skipped, because none of docker, podman, buildah works here" in printed
    assert {each.name for each in folder.iterdir()} == {WHEEL, PACKAGE, *KREW, SBOM, release.CHECKSUMS}


def test_checksums_are_there_for_every_file(plain: tuple[Path, str], with_image: Path) -> None:
    """SHA256SUMS has every file of the release, in the form that `sha256sum --check` reads."""
    for folder in (plain[0], with_image / "release"):
        lines = (folder / release.CHECKSUMS).read_text().splitlines()
        assert sorted(lines) == sorted(
            f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}"
            for each in folder.iterdir()
            if each.name != release.CHECKSUMS
        )


def test_a_release_can_be_made_again(plain: tuple[Path, str], with_image: Path) -> None:
    """The same commit gives the same bytes, wherever and whenever it is built."""
    for name in (WHEEL, PACKAGE, *KREW, SBOM):
        assert (plain[0] / name).read_bytes() == (with_image / "release" / name).read_bytes(), name


def test_the_krew_manifest_is_of_this_release(plain: tuple[Path, str]) -> None:
    """It has the version, and the checksum of the archive with the program that it names; addresses are open."""
    folder, _ = plain
    archive, manifest = (folder / name for name in KREW)
    spec = yaml.safe_load(manifest.read_text())["spec"]
    (platform,) = spec["platforms"]
    assert spec["version"] == f"v{__version__}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert (spec["homepage"], platform["uri"]) == ("HOMEPAGE_URL", "ARCHIVE_URL")
    with tarfile.open(archive) as packed:
        (program,) = packed.getmembers()
    assert (program.name, program.mode) == (platform["bin"], 0o755)


def test_the_image_is_built_from_the_project(with_image: Path) -> None:
    """It has the version and the base that are asked for, and is saved beside the rest."""
    calls = (with_image / "tools/podman.calls").read_text().splitlines()
    arguments = f"--build-arg VERSION={__version__} --build-arg BASE=python@sha256:1 --timestamp 1700000000"
    assert calls == [
        "info",
        f"build --tag gpushare:{__version__} {arguments} {ROOT}",
        f"save --output {with_image / 'release' / IMAGE} gpushare:{__version__}",
    ]
    assert IMAGE in (with_image / "release" / release.CHECKSUMS).read_text()


def test_the_package_in_the_wheel_starts(plain: tuple[Path, str]) -> None:
    """The package in it runs, and has the version of the release."""
    wheel = plain[0] / WHEEL
    program = "import gpushare_plugin as it; print(it.__file__, it.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=wheel.parent, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout.decode().split() == [f"{wheel}/gpushare_plugin/__init__.py", __version__]


def test_the_chart_is_the_chart(plain: tuple[Path, str]) -> None:
    """Helm reads the package, and makes of it what it makes of the folder; README and schemas are in it."""
    with helm_python.Chart.load(plain[0] / PACKAGE) as packaged, helm_python.Chart.load(CHART) as chart:
        assert packaged.render({}, name="a", namespace="b") == chart.render({}, name="a", namespace="b")
        assert {each["name"] for each in packaged.files} >= {"README.md", "files/config.schema.json"}
        assert packaged.schema == chart.schema


def test_the_chart_names_the_published_image(tmp_path: Path) -> None:
    """Of a release whose image has a place, the chart needs no image.repository; nothing else of the chart differs."""
    package = release.chart(tmp_path, 1700000000, "registry.example.com/gpushare")
    with helm_python.Chart.load(package) as packaged, helm_python.Chart.load(CHART) as chart:
        rendered = packaged.render({}, name="a", namespace="b")
        values = {"image": {"repository": "registry.example.com/gpushare"}}
        assert rendered == chart.render(values, name="a", namespace="b")
        assert f"registry.example.com/gpushare:{__version__}" in str(rendered)


def test_the_bill_of_materials_has_what_the_image_has(plain: tuple[Path, str]) -> None:
    """Each package has its version, its hashes, and whether it is left in the image after the build."""
    bom = json.loads((plain[0] / SBOM).read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert bom["metadata"]["component"]["version"] == __version__
    assert bom["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    found = {each["name"]: each for each in bom["components"]}
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    versions = {normal(name): version for name, version in pinned.items()}
    assert {name: each["version"] for name, each in found.items()} == {name: versions[name] for name in found}
    assert found["grpcio"]["purl"] == f"pkg:pypi/grpcio@{versions['grpcio']}"
    assert all(each["hashes"] for each in found.values())
    assert (found["grpcio"]["scope"], found["hatchling"]["scope"]) == ("required", "excluded")


def test_make_release_runs_what_is_tested() -> None:
    """The target of the Makefile runs what is tested here, and hands on the base and the place of the image."""
    make = shutil.which("make")
    assert make is not None
    command = [make, "--dry-run", "--silent", "release", "BASE=python@sha256:1", "REPOSITORY=r.example/a"]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert (
        ".venv/bin/python -m generators.release dist/gpushare --base python@sha256:1 --repository r.example/a"
        in printed
    )
