"""`make` on machines of others: what it lacks is said in one sentence with the remedy, or does not matter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chart.hashes import PYTHONS
from tests.workers import MEMORY, workers

ROOT = Path(__file__).parents[2]

WITHOUT_VENV = 'case "$*" in *ensurepip*) exit 1;; esac'
"""What a Python of Debian without the package python3-venv does."""


class Machine:
    """A machine with a copy of the Makefile, where only the programs that a test puts there are found."""

    def __init__(self, folder: Path) -> None:
        """Have what a recipe needs, and no Python."""
        self.folder = folder
        self.programs = folder / "programs"
        self.programs.mkdir()
        for name in ("env", "mkdir", "rm", "sh", "touch", "uname"):
            self.program(name, f'PATH=/usr/bin:/bin exec {name} "$@"')
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            (folder / name).write_text((ROOT / name).read_text())

    def program(self, name: str, script: str) -> None:
        """Put a program there."""
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def python(self, name: str, version: str, otherwise: str = "") -> None:
        """Put a Python there: it knows its version, and makes environments whose pip says what it was made by."""
        knows = f'case "$*" in *version_info*) case "$*" in *" {version}"*) exit 0;; esac; exit 1;; esac'
        makes = f'if [ "$2" = venv ]; then mkdir -p .venv/bin; echo {name} >.venv/bin/pip; fi'
        self.program(name, f"{knows}\n{otherwise}\n{makes}")

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `make`, by default to make the environment alone."""
        return subprocess.run(
            ["/usr/bin/make", "--no-print-directory", *(arguments or [".venv/bin/pip"])],
            cwd=self.folder,
            env={"PATH": str(self.programs), "LC_ALL": "C"},
            check=False,
            capture_output=True,
            text=True,
        )

    def refuses(self) -> str:
        """Run `make`, which must leave nothing behind and say one sentence; return that."""
        done = self.make()
        assert done.returncode != 0
        assert not (self.folder / ".venv").exists()
        said = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
        assert len(said) == 1, done.stderr
        return said[0]


@pytest.fixture
def other(tmp_path: Path) -> Machine:
    """Make a machine."""
    return Machine(tmp_path)


def test_the_first_python_that_every_package_has_a_wheel_for_is_taken(other: Machine) -> None:
    """A Python that is too new or too old is passed over, also where it is the one that is called python3."""
    other.python("python3", "3.15")
    other.python("python3.11", "3.11")
    other.python("python3.14", "3.14")
    assert other.make().returncode == 0
    assert (other.folder / ".venv/bin/pip").read_text() == "python3.14\n"


@pytest.mark.parametrize("versions", [[], ["3.15"], ["3.10"]])
def test_the_versions_of_python_are_named_if_none_fits(other: Machine, versions: list[str]) -> None:
    """The reader learns which to install, and how to name one that is elsewhere."""
    for version in versions:
        other.python("python3", version)
    said = other.refuses()
    assert "install one of them, or set PYTHON=" in said
    assert all(version in said for version in PYTHONS)


def test_the_versions_are_those_of_the_image() -> None:
    """Where the image can be built, the checks run."""
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("VERSIONS := ")]
    assert sorted(line.split()[2:]) == sorted(PYTHONS)


def test_the_second_try_works_after_python3_venv_was_missing(other: Machine) -> None:
    """The package is named, and nothing is left that the next `make` could take for an environment."""
    other.python("python3", "3.11", WITHOUT_VENV)
    assert "install python3-venv (Debian, Ubuntu)" in other.refuses()
    other.python("python3", "3.11")
    assert other.make().returncode == 0


def test_an_environment_that_is_not_whole_is_made_anew(other: Machine) -> None:
    """Python makes a directory with itself in it before it finds that it has no pip for it."""
    (other.folder / ".venv/bin").mkdir(parents=True)
    (other.folder / ".venv/bin/python").touch()
    other.python("python3", "3.11")
    assert other.make().returncode == 0
    assert (other.folder / ".venv/bin/pip").read_text() == "python3\n"


@pytest.mark.parametrize("target", ["demo", "test"])
def test_another_system_than_linux_is_refused_at_the_start(other: Machine, target: str) -> None:
    """On macOS nothing is installed and nothing compiled."""
    other.program("uname", "echo Darwin")
    other.python("python3", "3.11")
    done = other.make(target)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "gpushare runs on Linux alone" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("files", "number"),
    [
        ({}, 192),
        ({"cpu.max": "max 100000", "memory.max": "max"}, 192),
        ({"cpu.max": "200000 100000", "memory.max": "max"}, 6),
        ({"cpu.max": "150000 100000", "memory.max": str(64 * MEMORY)}, 6),
        ({"cpu.max": "max 100000", "memory.max": str(3 * MEMORY)}, 3),
        ({"cpu.max": "10000 100000", "memory.max": str(MEMORY // 2)}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 192),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 6),
        ({"memory/memory.limit_in_bytes": str(2 * MEMORY)}, 2),
    ],
)
def test_a_small_container_on_a_large_machine_starts_few_workers(
    tmp_path: Path, files: dict[str, str], number: int
) -> None:
    """The time and the memory that the container gets count, and not the 64 cores that it sees."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert workers(tmp_path, cores=64, memory=512 << 30) == number


def test_the_end_of_a_run_says_what_was_skipped_and_how_to_run_it(tmp_path: Path) -> None:
    """Without promtool the number of the tests that need it stands there, with the package that has it."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/monitoring/test_alerts.py"],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert re.match(r"SKIPPED \[[1-9]\d*\] ", said)
    assert "there is no promtool" in said
    assert "apt-get install prometheus" in said
