"""The builds whose programs run beside each other: a commit of the history, and this tree."""

import contextlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gpushare_plugin
from tests.process.daemon import Daemon

OLD = "e59800de273117663763406cf1550a7f0cf51209"
"""The commit whose programs are the old ones."""
WITH_CLAIMS = "c05dcfc590cb87460dea7d2f8bb05b4627ff47f7"
"""A commit whose daemon gives GPUs by claim, with records and files of the first version."""

PACKAGE = "gpushare_plugin"
ROOT = Path(__file__).parents[2]

Name = Literal["old", "new"]


class HistoryMissingError(Exception):
    """The commit of the old build is not in this clone."""


@dataclass(frozen=True, slots=True)
class Build:
    """The programs of one version: the package in the folder `root`, which says that it is this `version`."""

    name: Name
    root: Path
    version: str

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which a child process imports this build, wherever it is started.

        What is imported again and again is compiled once.
        """
        return {"PYTHONPATH": str(self.root), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": ""}

    def check_imported(self) -> None:
        """See that a child process imports this build, from its folder."""
        command = (sys.executable, "-c", f"import {PACKAGE} as it; print(it.__version__, it.__file__)")
        environment = {**os.environ, **self.environment}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == [self.version, str(self.root / PACKAGE / "__init__.py")]

    def check_running(self, daemon: Daemon) -> None:
        """See that a daemon is one of this build, by the version that it said when it started."""
        (told,) = daemon.events("starting")
        assert told["version"] == self.version, told


def new_build() -> Build:
    """Return the build of this tree."""
    return Build("new", Path(gpushare_plugin.__file__).parents[1], gpushare_plugin.__version__)


def old_build(folder: Path, commit: str = OLD) -> Build:
    """Return the build of a commit, extracted into a folder that several processes may share.

    Its version names the commit, so that a program shows of which build it is. Raises HistoryMissingError where this
    is no clone with that commit.
    """
    made = folder / commit
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as workplace:
            extract(commit, PACKAGE, Path(workplace))
            with _version_file(Path(workplace)).open("a") as file:
                file.write(f'__version__ += "+{commit[:8]}"\n')
            new = folder / f"{commit}.{os.getpid()}"
            new.mkdir()
            (Path(workplace) / PACKAGE).rename(new / PACKAGE)
            with contextlib.suppress(OSError):  # another process was faster
                new.rename(made)
    namespace: dict[str, str] = {}
    exec(_version_file(made).read_text(), namespace)  # noqa: S102 - our own text
    return Build("old", made, namespace["__version__"])


def _version_file(root: Path) -> Path:
    """Return the file of a build that says the version: the commit OLD has no file for that alone."""
    file = root / PACKAGE / "base" / "version.py"
    return file if file.exists() else root / PACKAGE / "__init__.py"


def extract(commit: str, path: str, folder: Path) -> None:
    """Write what a folder of the project was at a commit into `folder`, below the same path.

    Raises HistoryMissingError where this is no clone with that commit.
    """
    missing = f"the commit {commit}, which this tree is tried beside, is missing:"
    try:
        top, shallow = _git("rev-parse", "--show-toplevel", "--is-shallow-repository").decode().splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        raise HistoryMissingError(f"{missing} this is no clone") from error
    if Path(top).resolve() != ROOT.resolve():
        raise HistoryMissingError(f"{missing} this is no clone")
    try:
        _git("cat-file", "-e", f"{commit}^{{commit}}")
    except subprocess.CalledProcessError as error:
        if shallow == "true":
            raise HistoryMissingError(f"{missing} this clone has no history (git fetch --unshallow)") from error
        raise
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit, path))) as archive:
        archive.extractall(folder, filter="data")


def _git(*arguments: str) -> bytes:
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, capture_output=True, check=True).stdout
