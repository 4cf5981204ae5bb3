"""The image: what its build installs starts, is complete and small, and does the chart's bidding."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from importlib.metadata import distributions
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import yaml

from gpushare_plugin import __version__
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.charts.rendering import ROOT, objects

DOCKERFILE = (ROOT / "Dockerfile").read_text()
BARE: Mapping[str, str] = {"PATH": "/usr/bin:/bin"}
"""An environment without anything of the one the tests run in."""

pytestmark = pytest.mark.timeout(600)  # it downloads what the image is made of


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install as the Dockerfile does, into an empty directory."""
    target = tmp_path_factory.mktemp("image") / "gpushare"
    done = subprocess.run(
        [ROOT / "image/install.sh", target],
        env={**BARE, "PYTHON": sys.executable, "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def packages(root: Path) -> Path:
    """Return the directory the packages were installed into."""
    (found,) = root.glob("lib/python3.*/site-packages")
    return found


def test_version(root: Path) -> None:
    """The installed command starts."""
    printed = subprocess.run([root / "bin/gpushare", "version"], env=BARE, capture_output=True, text=True, check=True)
    assert printed.stdout == f"gpushare {__version__}\n"


def test_list(root: Path) -> None:
    """The installed command shows simulated GPUs, so nothing it needs for that is missing."""
    gpus = ROOT / "examples/gpus/four-a100.yaml"
    command: list[str | Path] = [root / "bin/gpushare", "list", "--simulate", gpus, "-o", "json"]
    printed = subprocess.run(command, env=BARE, capture_output=True, text=True, check=True)
    assert len(json.loads(printed.stdout)["gpus"]) == 4


def test_nothing_needless(root: Path) -> None:
    """Only packages of the versions in constraints.txt are installed, no installer and nothing for development."""
    installed = {f"{each.name}=={each.version}" for each in distributions(path=[str(packages(root))])}
    allowed = (ROOT / "constraints.txt").read_text().splitlines()
    assert {each.lower() for each in installed} <= {f"gpushare=={__version__}", *(line.lower() for line in allowed)}
    names = {each.partition("==")[0] for each in installed}
    assert {"gpushare", "grpcio", "nvidia-ml-py"} <= names
    assert not names & {"pip", "setuptools", "pytest", "mypy", "grpcio-tools", "ziglang", "hatchling"}


def test_byte_code(root: Path) -> None:
    """Every module is compiled already, for the container's file system is read-only."""
    sources = list(packages(root).rglob("*.py"))
    assert sources
    assert not [source for source in sources if not Path(cache_from_source(source)).exists()]


async def test_chart_runs_the_image(root: Path, kubelet: EmbeddedKubelet, short_path: Path) -> None:
    """The installed daemon, started as the chart's pod starts it, serves a pod its 5 GiB and ends cleanly."""
    values = yaml.safe_load((ROOT / "examples/values/simulated.yaml").read_text())
    made = {each["kind"]: each for each in objects(values)}
    config_map, daemonset = made["ConfigMap"], made["DaemonSet"]
    for name, content in config_map["data"].items():
        (short_path / name).write_text(content)
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    given = {
        entry["name"]: entry["value"].replace("/etc/gpushare", str(short_path))
        for entry in container["env"]
        if "value" in entry
    }
    daemon = await asyncio.create_subprocess_exec(
        root / "bin/gpushare",
        *container["args"],
        env={**BARE, **given, "DEVICE_PLUGIN_PATH": str(kubelet.plugin_directory)},  # instead of the mount
    )
    try:
        await kubelet.wait_for(lambda node: node.allocatable() == {"aliyun.com/gpu-mem": 160})
        admitted = await kubelet.admit(Pod("sample", [Container("show", {"aliyun.com/gpu-mem": 5})]))
        assert admitted.containers["show"].environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "5120"
    finally:
        daemon.send_signal(signal.SIGTERM)
        status = await daemon.wait()
    assert status == 0


def test_dockerfile_installs_what_is_tested() -> None:
    """The Dockerfile runs the tested script, copies its result to the same place, and starts what is installed."""
    (target,) = re.findall(r"^RUN image/install\.sh (\S+)$", DOCKERFILE, re.MULTILINE)
    assert f"COPY --from=build {target} {target}\n" in DOCKERFILE
    assert f"ENV PATH={target}/bin:" in DOCKERFILE
    assert '\nENTRYPOINT ["gpushare"]\nCMD ["run"]\n' in DOCKERFILE
    assert f"\nARG VERSION={__version__}\n" in DOCKERFILE


def test_dockerfile_gets_what_it_copies() -> None:
    """What the Dockerfile copies exists and is let through by .dockerignore, which lets nothing else through."""
    copied = {
        source for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for source in line.split()
    }
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == copied
    assert not [source for source in copied if not (ROOT / source).exists()]
    assert any(fnmatch("gpushare_plugin/__pycache__", rule) for rule in rules if not rule.startswith(("!", "#")))


def test_dockerfile_base_is_pinned() -> None:
    """Both stages start from the same slim Python of one minor version, which an argument can change."""
    (version,) = re.findall(r"^ARG PYTHON_VERSION=(.+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"3\.\d+", version)
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert bases == ["python:${PYTHON_VERSION}-slim"] * 2
