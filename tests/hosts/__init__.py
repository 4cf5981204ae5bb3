"""Hosts described by folders, see README.md; each test gets a copy."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.gpus.cdi.host import HostCdi

DRIVER = "570.86.15"
"""The version of the driver on every host."""

_HERE = Path(__file__).parent
_GENERATORS = {"kubeadm": "usr/bin/nvidia-ctk", "operator": "usr/local/nvidia/toolkit/nvidia-ctk.real"}


class Host:
    """A copy of a described host below a folder, as a container sees it where the chart mounts parts of the host."""

    def __init__(self, name: str, folder: Path, *, without: Sequence[str] = ()) -> None:
        """Copy the host called `name` into `folder`, without some of its files and folders."""
        self.root = folder / name
        self._generator = _GENERATORS.get(name)
        shutil.copytree(_HERE / name, self.root, symlinks=True)
        for path in without:
            self.without(path)
        driver = "/run/nvidia/driver" if name == "operator" else "/"
        self.driver_here = self.root / driver.removeprefix("/")
        # Programs of a host whose driver has a root of its own are below /host.
        (self.root / "host").symlink_to(self.root)
        self.flags: dict[str, object] = {
            "nvidiaDriverRoot": driver,
            "nvidiaDevRoot": "/",
            "plugin": {"deviceListStrategy": "cdi-cri", "containerDriverRoot": str(self.driver_here)},
        }

    @property
    def spec_dirs(self) -> tuple[Path, Path]:
        """The directories of CDI specifications."""
        return self.root / "etc/cdi", self.root / "var/run/cdi"

    @property
    def own(self) -> Path:
        """The specification of gpushare."""
        return self.spec_dirs[1] / "gpushare-gpu.json"

    def cdi(self) -> HostCdi:
        """Return what looks at the CDI devices of this host."""
        return HostCdi(self.spec_dirs, self.root)

    def settings(self, **flags: object) -> Flags:
        """Return the flags of a config for this host, with changes."""
        return Flags.model_validate({**self.flags, **flags})

    def without(self, path: str) -> None:
        """Remove a file or a folder of the host."""
        there = self.root / path
        if there.is_dir():
            shutil.rmtree(there)
        else:
            there.unlink()

    def with_generator(self, *uuids: str) -> Path:
        """Install the stand-in for `nvidia-ctk`, which knows these GPUs; return the file with a line for each run."""
        assert self._generator is not None
        program = self.root / self._generator
        program.write_text(f"#!{sys.executable}\n{(_HERE / 'nvidia_ctk.py').read_text()}")
        program.chmod(0o755)
        program.with_name("gpus").write_text("\n".join(uuids))
        return program.with_name("calls")
