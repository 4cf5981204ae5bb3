"""The image: what its build installs starts, is complete and small, and does the chart's bidding."""

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from http import HTTPStatus
from importlib.metadata import distributions
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import yaml

from gpushare_plugin import __version__
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.ports import claim_port
from tests.chart.hashes import PYTHONS, REQUIREMENTS, direct, normal
from tests.chart.reading import container as daemon_container
from tests.chart.reading import extended, given, share_pod
from tests.chart.rendering import ROOT
from tests.process.daemon import answer, comes_to_answer

DOCKERFILE = (ROOT / "Dockerfile").read_text()
BARE: Mapping[str, str] = {"PATH": "/usr/bin:/bin"}
"""An environment without anything of the one the tests run in."""


# It downloads what the image is made of. In `make test` one process runs these tests, and no other waits for that.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("image")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install as the Dockerfile does, into an empty directory; once, however many processes the tests run in."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # which is that of the whole run
    target, installed = place / "image/gpushare", place / "image.installed"
    with (place / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists():
            _install(target)
            installed.touch()
    return target


def _install(target: Path) -> None:
    shutil.rmtree(target.parent, ignore_errors=True)
    target.parent.mkdir()
    done = subprocess.run(
        [ROOT / "image/install.sh", target],
        env={**BARE, "PYTHON": sys.executable, "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def packages(root: Path) -> Path:
    """Return the directory the packages were installed into."""
    (found,) = root.glob("lib/python3.*/site-packages")
    return found


def test_the_installed_command_starts(root: Path) -> None:
    """The installed command starts."""
    printed = subprocess.run([root / "bin/gpushare", "version"], env=BARE, capture_output=True, text=True, check=True)
    assert printed.stdout == f"gpushare {__version__}\n"


def test_the_installed_command_lists_simulated_gpus(root: Path) -> None:
    """Nothing that it needs for that is missing."""
    gpus = ROOT / "examples/gpus/four-a100.yaml"
    command: list[str | Path] = [root / "bin/gpushare", "list", "--simulate", gpus, "-o", "json"]
    printed = subprocess.run(command, env=BARE, capture_output=True, text=True, check=True)
    assert len(json.loads(printed.stdout)["gpus"]) == 4


def test_the_image_has_pinned_packages_alone(root: Path) -> None:
    """Only packages of the versions in constraints.txt are installed, no installer and nothing for development."""
    installed = {f"{each.name}=={each.version}" for each in distributions(path=[str(packages(root))])}
    allowed = (ROOT / "constraints.txt").read_text().splitlines()
    assert {each.lower() for each in installed} <= {f"gpushare=={__version__}", *(line.lower() for line in allowed)}
    names = {each.partition("==")[0] for each in installed}
    assert {"gpushare", "grpcio", "nvidia-ml-py"} <= names
    assert not names & {"pip", "setuptools", "pytest", "mypy", "grpcio-tools", "ziglang", "hatchling", "Pygments"}
    programs = {path.name for path in (root / "bin").iterdir() if not path.name.startswith("python")}
    assert programs == {"gpushare", "kubectl-gpushare", "kubectl-inspect-cgpu", "kubectl-inspect-gpushare"}


@pytest.mark.parametrize(
    "program", ["gpushare inspect", "kubectl-gpushare inspect", "kubectl-inspect-gpushare", "kubectl-inspect-cgpu"]
)
def test_the_cluster_is_shown_from_inside_of_a_pod(root: Path, program: str) -> None:
    """Every name of `gpushare inspect` is in PATH, and asks as the service account: without one, an error says so."""
    environment = {"PATH": f"{root}/bin", "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    done = subprocess.run(program.split(), env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot find an API server: the pod's service account is not usable" in done.stderr


def test_every_module_can_be_imported(root: Path) -> None:
    """Packages that are left out of the dependencies are not needed."""
    modules = [
        ".".join(path.relative_to(packages(root)).with_suffix("").parts)
        for path in (packages(root) / "gpushare_plugin").rglob("*.py")
    ]
    assert len(modules) > 50
    imports = "; ".join(f"import {module}" for module in modules)
    subprocess.run([root / "bin/python", "-c", imports], env=BARE, check=True)


def test_the_image_stays_small(root: Path) -> None:
    """The files that are copied into it have some 138 MB; the figure is told in docs/install.md."""
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    assert size < 146e6


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_both_architectures_have_a_wheel_of_every_package(root: Path, machine: str) -> None:
    """For the image's Python there is a wheel of everything in it, on either architecture."""
    wanted = [f"{each.name}=={each.version}" for each in distributions(path=[str(packages(root))])]
    (python,) = re.findall(r"^ARG BASE=python:(.+)-slim$", DOCKERFILE, re.MULTILINE)
    options = ["--dry-run", "--quiet", "--target", "/nowhere", "--no-deps", "--only-binary=:all:"]
    options += ["--python-version", python, "--platform", f"manylinux_2_28_{machine}"]
    options += ["--platform", f"manylinux2014_{machine}"]
    given = [each for each in wanted if not each.startswith("gpushare==")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *given], check=True)


def test_every_module_is_compiled_already(root: Path) -> None:
    """Every module is compiled already, for the container's file system is read-only."""
    sources = list(packages(root).rglob("*.py"))
    assert sources
    assert not [source for source in sources if not Path(cache_from_source(source)).exists()]


IMPORTED_BY_A_NODE = """
import json, sys
import gpushare_plugin.cli.commands.node.run, gpushare_plugin.observe.http, gpushare_plugin.observe.exposition
import gpushare_plugin.gpus.nvml.gpus, gpushare_plugin.kube.own_node.member
import gpushare_plugin.config.loading.document
print(json.dumps([found for each in list(sys.modules.values()) if (found := getattr(each, "__cached__", None))]))
"""


def test_the_standard_library_is_compiled_for_the_daemon(root: Path, tmp_path: Path) -> None:
    """The base image has no byte code: the Dockerfile's last command leaves it for all that the daemon imports."""
    (imports,) = re.findall(r"^ && python -c '([^']+)'$", DOCKERFILE, re.MULTILINE)
    library = {**BARE, "PYTHONPYCACHEPREFIX": str(tmp_path)}  # as if there were no byte code yet
    subprocess.run([root / "bin/python", "-c", imports], env=library, check=True)
    command: list[str | Path] = [root / "bin/python", "-B", "-c", IMPORTED_BY_A_NODE]
    printed = subprocess.run(command, env=library, capture_output=True, text=True, check=True)
    wanted = json.loads(printed.stdout)
    assert len(wanted) > 300
    assert [file for file in wanted if not Path(file).exists()] == []


async def test_chart_runs_the_image(root: Path, kubelet: EmbeddedKubelet, short_path: Path) -> None:
    """The installed daemon, started as the chart's pod starts it, serves a pod its 5 GiB and ends cleanly.

    It answers the chart's probes, and the chart's own test finds that it was given a share.
    """
    values = yaml.safe_load((ROOT / "examples/values/simulated.yaml").read_text())
    values["httpPort"] = port = claim_port()
    container = daemon_container(values)
    directory = {"DEVICE_PLUGIN_PATH": str(kubelet.plugin_directory)}  # instead of the mount
    daemon = await asyncio.create_subprocess_exec(
        root / "bin/gpushare",
        *container["args"],
        env={**BARE, **given(values, short_path), **directory},
    )
    try:
        await kubelet.wait_for(lambda node: node.allocatable() == {"aliyun.com/gpu-mem": 160})
        admitted = await kubelet.admit(Pod("sample", [Container("show", {"aliyun.com/gpu-mem": 5})]))
        assert admitted.containers["show"].environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "5120"
        # Registering does not wait for what serves probes.
        assert (await answer(port, container["livenessProbe"]["httpGet"]["path"]))[0] == HTTPStatus.OK
        # Between the kubelet's knowing and the daemon's knowing that it knows, there is a moment.
        await comes_to_answer(port, container["readinessProbe"]["httpGet"]["path"], (HTTPStatus.OK, "ok\n"))
        (test,) = share_pod(values)["spec"]["containers"]
        admitted = await kubelet.admit(Pod("test", [Container("share", extended(test))]))
        environment = {**BARE, **admitted.containers["share"].environment}
        command = [*test["command"], *test["args"]]
        await asyncio.to_thread(subprocess.run, command, env=environment, check=True)
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
    """Both stages start from the same base, which one argument can pin: a slim Python whose wheels have hashes."""
    (version,) = re.findall(r"^ARG BASE=python:(.+)-slim$", DOCKERFILE, re.MULTILINE)
    assert version in PYTHONS
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE}"] * 2


def test_wheels_have_hashes() -> None:
    """What the image is built from has the versions of constraints.txt, and nothing is missing; see `make hashes`."""
    found = re.findall(
        r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", REQUIREMENTS.read_text(), re.MULTILINE
    )
    lines = (ROOT / "constraints.txt").read_text().split()
    wanted = {normal(name): version for name, version in (line.split("==") for line in lines)}
    assert {name: version for name, version, _ in found} == {name: wanted[name] for name, _, _ in found}
    assert {normal(re.split(r"[^\w.-]", each)[0]) for each in direct()} <= {name for name, _, _ in found}


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path) -> None:
    """An image is not built from a wheel that is not the one that was written down."""
    changed = re.sub(r"sha256:[0-9a-f]{8}", "sha256:00000000", REQUIREMENTS.read_text())
    (tmp_path / "requirements.txt").write_text(changed)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--only-binary=:all:", "--target"]
    command += [str(tmp_path / "target"), "--require-hashes", "--requirement", str(tmp_path / "requirements.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
