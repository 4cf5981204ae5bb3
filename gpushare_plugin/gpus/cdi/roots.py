"""Where the driver, the device nodes and NVIDIA's programs are: on the host, and in the container of this process."""

from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.sections import Flags

OPERATORS_TOOLKIT = "/usr/local/nvidia/toolkit"
"""Where NVIDIA's GPU operator installs the toolkit (NVIDIA/gpu-operator, deployments/gpu-operator/values.yaml)."""


class Program(Struct, frozen=True):
    """A program of the host."""

    path: str
    """The path on the host, which the container runtime of the host can run."""
    here: Path
    """The path in the container of this process."""


class Roots(Struct, frozen=True):
    """The roots of a host."""

    driver: Path
    """The root of the driver in the container of this process."""
    driver_on_host: str
    """The root of the driver on the host."""
    devices: Path
    """The root of the device nodes in the container of this process."""
    devices_on_host: str
    """The root of the device nodes on the host."""
    programs: Path
    """The root of the host, or of a part of the host with programs, in the container of this process."""
    program_folders: tuple[str, ...]
    """The folders with NVIDIA's programs on the host, the first one first."""

    @classmethod
    def of(cls, flags: Flags, here: Path = Path("/")) -> "Roots":
        """Return the roots by the flags of the config; `here` is the root of the container of this process."""
        driver = Path(flags.plugin.container_driver_root)
        on_host = flags.nvidia_driver_root
        folders = dict.fromkeys((str(Path(flags.plugin.nvidia_ctk_path).parent), "/usr/bin", OPERATORS_TOOLKIT))
        return cls(
            driver,
            on_host,
            here,
            flags.nvidia_dev_root or on_host,
            driver if on_host == "/" else here / "host",
            tuple(folders),
        )

    def program(self, *names: str) -> Program | None:
        """Return the first of the programs `names` in the first folder that has one of them; None without one."""
        for folder in self.program_folders:
            for name in names:
                path = f"{folder}/{name}"
                if (here := self.programs / path.removeprefix("/")).is_file():
                    return Program(path, here)
        return None

    def driver_path(self, here: Path) -> tuple[str, str]:
        """Return the path on the host of a file of the driver, and the path in containers, as NVIDIA's toolkit does."""
        relative = here.relative_to(self.driver)
        return str(Path(self.driver_on_host) / relative), f"/{relative}"
