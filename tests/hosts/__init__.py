"""Hosts described by folders, see README.md; each test gets a copy."""

import shutil
from pathlib import Path

DRIVER = "570.86.15"
"""The version of the driver on every host."""


class Host:
    """A copy of a described host below a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        """Copy the host called `name` into `folder`."""
        self.root = folder / name
        shutil.copytree(Path(__file__).parent / name, self.root, symlinks=True)

    @property
    def spec_dirs(self) -> tuple[Path, Path]:
        """The directories of CDI specifications."""
        return self.root / "etc/cdi", self.root / "var/run/cdi"
