"""A clone of the repository, in which commands of the documents run."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chart.rendering import ROOT


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a clone of what is in the repository or would be committed, with this environment installed; work in it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone of the repository")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    folder = tmp_path / "gpushare"
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    (folder / ".venv").mkdir()
    for each in Path(sys.prefix).iterdir():
        if each.name not in (".installed", ".developer"):
            (folder / ".venv" / each.name).symlink_to(each)
    for stamp in (".installed", ".developer"):  # newer than what they depend on, so that `make` installs nothing
        (folder / ".venv" / stamp).touch()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")  # the copy has no commit whose time a release could have
    monkeypatch.chdir(folder)
    return folder
